//! One state tree: every part of the program can show what it is and how it is, as names and values.
//!
//! A [`Node`] is plain data, made anew when somebody asks, so looking never holds up the data path.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// A part of the state: a value, or named parts in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
    /// Parts.
    Parts(Vec<(String, Node)>),
}

impl Node {
    /// A node without parts.
    pub fn parts() -> Node {
        Node::Parts(Vec::new())
    }

    /// Adds a part; a value becomes the unnamed first part.
    #[must_use]
    pub fn with(self, name: impl Into<String>, part: impl Into<Node>) -> Node {
        let mut parts = match self {
            Node::Parts(parts) => parts,
            value => vec![(String::new(), value)],
        };
        parts.push((name.into(), part.into()));
        Node::Parts(parts)
    }

    /// The node at a path of names.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match self {
            Node::Parts(parts) => parts.iter().find(|(name, _)| name == first)?.1.at(rest),
            _ => None,
        }
    }
}

impl From<u64> for Node {
    fn from(value: u64) -> Node {
        Node::Number(value)
    }
}

impl From<String> for Node {
    fn from(value: String) -> Node {
        Node::Text(value)
    }
}

impl From<&str> for Node {
    fn from(value: &str) -> Node {
        Node::Text(value.to_owned())
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Text(text) => serializer.serialize_str(text),
            Node::Number(number) => serializer.serialize_u64(*number),
            Node::Parts(parts) => {
                let mut map = serializer.serialize_map(Some(parts.len()))?;
                for (name, part) in parts {
                    map.serialize_entry(name, part)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_order_and_are_found_by_path() {
        let node = Node::parts().with("link", "up").with("queue 0", Node::parts().with("frames", 7));
        assert_eq!(node.at(&["queue 0", "frames"]), Some(&Node::Number(7)));
        assert_eq!(node.at(&["queue 1"]), None);
        assert_eq!(node.at(&["link", "x"]), None);
    }
}
