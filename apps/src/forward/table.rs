//! The live table: a row a port, once a second.
//!
//! [`LiveTable`] makes text and nothing else. On a terminal it goes back over its own rows, so that nothing flickers and nothing above
//! is lost; elsewhere each second appends its rows, so that a log keeps them.

use crate::output::thousands;
use std::fmt::Write;
use std::time::Duration;

/// How a second's rows relate to those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// They replace them.
    Redraw,
    /// They follow them.
    Append,
}

/// What one port did in the last second, and since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) port: String,
    pub(crate) rx_frames: u64,
    pub(crate) tx_frames: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
    pub(crate) rx_mpps: f64,
    pub(crate) tx_mpps: f64,
    pub(crate) pool_in_use: usize,
    pub(crate) pool_total: usize,
    pub(crate) link: String,
}

/// Names and widths; the first column and the last are words, the others numbers.
const COLUMNS: [(&str, usize); 10] = [
    ("seconds", 7),
    ("port", 12),
    ("rx frames", 13),
    ("tx frames", 13),
    ("rx dropped", 10),
    ("tx dropped", 10),
    ("rx Mpps", 7),
    ("tx Mpps", 7),
    ("pool in use", 18),
    ("link", 9),
];

const PORT: usize = 1;
const LINK: usize = 9;

/// Without wrapping, a narrow window cuts rows and the way back up stays the same (ECMA-48 CUU and EL; DEC private mode 7).
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The table; it remembers what it drew.
pub(crate) struct LiveTable {
    style: Style,
    drawn: Option<usize>,
}

impl LiveTable {
    /// Nothing drawn yet.
    pub(crate) fn new(style: Style) -> LiveTable {
        LiveTable { style, drawn: None }
    }

    /// The text that shows `rows` as of `elapsed`.
    pub(crate) fn draw(&mut self, elapsed: Duration, rows: &[Row]) -> String {
        let mut text = String::new();
        match (self.drawn, self.style) {
            (None, _) => text += &line(COLUMNS.map(|(name, _)| name.to_owned())),
            // Writing to a String does not fail.
            (Some(up), Style::Redraw) => drop(write!(text, "\x1b[{up}A")),
            (Some(_), Style::Append) => {}
        }
        for row in rows {
            text += &line(row.cells(elapsed));
        }
        self.drawn = Some(rows.len());
        match self.style {
            Style::Redraw => format!("{NO_WRAP}{}{WRAP}", text.replace('\n', "\x1b[K\n")),
            Style::Append => text,
        }
    }
}

impl Row {
    fn cells(&self, elapsed: Duration) -> [String; 10] {
        let share = 100.0 * self.pool_in_use as f64 / self.pool_total.max(1) as f64;
        let (in_use, total) = (thousands(self.pool_in_use as u64), thousands(self.pool_total as u64));
        [
            format!("{:.1}", elapsed.as_secs_f64()),
            self.port.clone(),
            thousands(self.rx_frames),
            thousands(self.tx_frames),
            thousands(self.rx_dropped),
            thousands(self.tx_dropped),
            format!("{:.3}", self.rx_mpps),
            format!("{:.3}", self.tx_mpps),
            format!("{in_use}/{total} {share:3.0}%"),
            self.link.clone(),
        ]
    }
}

fn line(cells: [String; 10]) -> String {
    let mut text = String::new();
    for (index, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        let padded = match index {
            PORT | LINK => format!("{cell:<width$}  "),
            _ => format!("{cell:>width$}  "),
        };
        text += &padded;
    }
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            port: "0 sim:igb".into(),
            rx_frames: 1_234_567,
            tx_frames: 1_234_000,
            rx_dropped: 3,
            rx_mpps: 1.23456,
            pool_in_use: 1024,
            pool_total: 2048,
            link: "1000 full".into(),
            ..Row::default()
        }
    }

    #[test]
    fn columns_are_aligned() {
        let text = LiveTable::new(Style::Append).draw(Duration::from_millis(1500), &[row(), row()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        for (name, value) in
            [("rx frames", "1,234,567"), ("rx Mpps", "1.235"), ("pool in use", "1,024/2,048  50%")]
        {
            let end = |line: &str, part: &str| line.find(part).unwrap() + part.len();
            assert_eq!(end(lines[0], name), end(lines[1], value), "{text}");
        }
        assert_eq!(lines[0].find("link"), lines[1].find("1000 full"));
        assert!(lines[1].starts_with("    1.5  0 sim:igb "), "{text}");
    }

    #[test]
    fn the_header_comes_once() {
        let mut table = LiveTable::new(Style::Append);
        assert!(table.draw(Duration::ZERO, &[row()]).contains("rx frames"));
        assert!(!table.draw(Duration::ZERO, &[row()]).contains("rx frames"));
    }

    #[test]
    fn a_terminal_is_redrawn_from_the_first_row() {
        let mut table = LiveTable::new(Style::Redraw);
        let first = table.draw(Duration::ZERO, &[row(), row()]);
        assert!(!first.contains("\x1b[2A") && first.starts_with(NO_WRAP) && first.ends_with(WRAP));
        let second = table.draw(Duration::ZERO, &[row(), row()]);
        assert!(second.starts_with("\x1b[?7l\x1b[2A"), "{second:?}");
        assert_eq!(second.matches("\x1b[K\n").count(), 2);
    }
}
