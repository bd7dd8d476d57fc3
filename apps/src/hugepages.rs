//! `pollring hugepages`: what the machine has in huge pages, and reserving or releasing some.
//!
//! `report` reads; `reserve N` makes at least N pages free for new memory; `release N` gives up to N free pages back to the kernel. The
//! work is done by the hugepages crate; this file parses, prints the figures before and after, and changes nothing else: the kernel
//! forgets the pool at the next boot.

use crate::error::AppError;
use crate::output::{self, Format, bytes, thousands};
use clap::{Subcommand, ValueEnum};
use pollring::hugepages::pool::{self, PoolError, PoolReport};
use pollring::hugepages::{NumaNode, PageSize};
use serde::Serialize;

/// Arguments of `pollring hugepages`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Page size; reserve and release take 2M if it is left out
    #[arg(long, value_enum, global = true)]
    size: Option<Size>,
    /// NUMA node; left out, the kernel chooses
    #[arg(long, value_name = "N", global = true)]
    node: Option<u16>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Show what is reserved (the default)
    Report,
    /// Make at least N pages free for new memory
    Reserve {
        /// Pages
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        pages: u64,
    },
    /// Give up to N free pages back to the kernel
    Release {
        /// Pages
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        pages: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    /// 2 MiB
    #[value(name = "2M")]
    Huge2M,
    /// 1 GiB
    #[value(name = "1G")]
    Huge1G,
}

impl From<Size> for PageSize {
    fn from(size: Size) -> PageSize {
        match size {
            Size::Huge2M => PageSize::Huge2M,
            Size::Huge1G => PageSize::Huge1G,
        }
    }
}

/// Pages of one size, on one node or in all.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    page_bytes: u64,
    /// `None` is the whole machine.
    node: Option<u16>,
    total: u64,
    free: u64,
    /// Free pages that are promised to mappings; the kernel says it for the whole machine only.
    reserved: Option<u64>,
}

/// A change of the pool.
#[derive(Debug, Serialize)]
struct Change {
    action: &'static str,
    page_bytes: u64,
    node: Option<u16>,
    asked: u64,
    total_before: u64,
    total_after: u64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Change>,
    pools: Vec<Row>,
}

/// Does what is asked, then prints what the machine has.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let node = arguments.node.map(NumaNode);
    let size = PageSize::from(arguments.size.unwrap_or(Size::Huge2M));
    let change = match &arguments.action {
        None | Some(Action::Report) => None,
        Some(Action::Reserve { pages }) => Some(reserve(size, *pages, node)?),
        Some(Action::Release { pages }) => Some(release(size, *pages, node)?),
    };
    let only = arguments.size.map(PageSize::from);
    let pools = rows(&pool::report()?, only, node)?;
    let outcome = Outcome { change, pools };
    match Format::from_switch(arguments.json) {
        Format::Json => output::write_json(&outcome),
        Format::People => output::write_text(&outcome.to_text()),
    }
}

fn reserve(size: PageSize, pages: u64, node: Option<NumaNode>) -> Result<Change, PoolError> {
    let done = pool::reserve(size, pages, node)?;
    Ok(change("reserve", size, pages, node, (done.before, done.after)))
}

fn release(size: PageSize, pages: u64, node: Option<NumaNode>) -> Result<Change, AppError> {
    if let Some(node) = node {
        let text =
            format!("release on {node}: the kernel chooses the nodes that pages go from; leave --node out");
        return Err(AppError::Usage(text));
    }
    let released = pool::release(size, pages)?;
    let after = pool::report()?.iter().find(|pool| pool.size == size).map_or(0, |pool| pool.total);
    Ok(change("release", size, pages, node, (after + released, after)))
}

fn change(
    action: &'static str,
    size: PageSize,
    asked: u64,
    node: Option<NumaNode>,
    total: (u64, u64),
) -> Change {
    let node = node.map(|node| node.0);
    Change {
        action,
        page_bytes: size.bytes() as u64,
        node,
        asked,
        total_before: total.0,
        total_after: total.1,
    }
}

/// The machine's row of each size, then one for each node that has some.
fn rows(pools: &[PoolReport], only: Option<PageSize>, node: Option<NumaNode>) -> Result<Vec<Row>, PoolError> {
    let mut rows = Vec::new();
    for pool in pools.iter().filter(|pool| only.is_none_or(|size| pool.size == size)) {
        let page_bytes = pool.size.bytes() as u64;
        if let Some(node) = node {
            pool.on(node).ok_or(PoolError::NoNode { node, size: pool.size })?;
        } else {
            rows.push(Row {
                page_bytes,
                node: None,
                total: pool.total,
                free: pool.free,
                reserved: Some(pool.reserved),
            });
        }
        let parts = pool.nodes.iter().filter(|part| node.is_none_or(|node| part.node == node));
        rows.extend(parts.map(|part| Row {
            page_bytes,
            node: Some(part.node.0),
            total: part.total,
            free: part.free,
            reserved: None,
        }));
    }
    Ok(rows)
}

impl Outcome {
    fn to_text(&self) -> String {
        let header = ["page size", "where", "total", "free", "reserved", "free bytes"];
        let table = output::table(&header, &[2, 3, 4, 5], self.pools.iter().map(Row::cells));
        let note = "reserved: free, but promised to memory that was not touched yet";
        match &self.change {
            Some(change) => format!("{}\n\n{table}\n", change.to_text()),
            None => format!("{table}\n\n{note}; more: pollring hugepages reserve N\n"),
        }
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        vec![
            bytes(self.page_bytes),
            self.node.map_or_else(|| "machine".to_owned(), |node| NumaNode(node).to_string()),
            thousands(self.total),
            thousands(self.free),
            self.reserved.map_or_else(|| "-".to_owned(), thousands),
            bytes(self.free * self.page_bytes),
        ]
    }
}

impl Change {
    fn to_text(&self) -> String {
        let Change { action, asked, total_before, total_after, .. } = self;
        let place = self.node.map_or_else(String::new, |node| format!(" on {}", NumaNode(node)));
        let size = bytes(self.page_bytes);
        let why = match total_before == total_after {
            true if *action == "reserve" => "; enough were free already",
            true => "; none was free",
            false => "",
        };
        let [asked, before, after] = [asked, total_before, total_after].map(|pages| thousands(*pages));
        format!("{action} {asked} pages of {size}{place}: {before} before, {after} after{why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollring::hugepages::pool::NodeReport;

    fn pools() -> Vec<PoolReport> {
        let part = |node, total, free| NodeReport { node: NumaNode(node), total, free, surplus: 0 };
        let nodes = vec![part(0, 1024, 1000), part(1, 0, 0)];
        let (surplus, overcommit) = (0, 0);
        vec![
            PoolReport {
                size: PageSize::Huge2M,
                total: 1024,
                free: 1000,
                reserved: 8,
                surplus,
                overcommit,
                nodes,
            },
            PoolReport {
                size: PageSize::Huge1G,
                total: 2,
                free: 1,
                reserved: 0,
                surplus,
                overcommit,
                nodes: vec![],
            },
        ]
    }

    #[test]
    fn every_size_has_a_row_for_the_machine_and_one_a_node() {
        let all = rows(&pools(), None, None).unwrap();
        let places: Vec<_> = all.iter().map(|row| (row.page_bytes >> 20, row.node)).collect();
        assert_eq!(places, [(2, None), (2, Some(0)), (2, Some(1)), (1024, None)]);
        let text = Outcome { change: None, pools: all }.to_text();
        assert!(text.contains("1,024") && text.contains("2,000 MiB") && text.contains("machine"), "{text}");
    }

    #[test]
    fn a_size_or_node_leaves_only_its_rows() {
        assert_eq!(rows(&pools(), Some(PageSize::Huge1G), None).unwrap().len(), 1);
        let one = rows(&pools(), Some(PageSize::Huge2M), Some(NumaNode(0))).unwrap();
        assert_eq!((one.len(), one[0].node, one[0].reserved), (1, Some(0), None));
        let error = rows(&pools(), None, Some(NumaNode(9))).unwrap_err();
        assert!(error.to_string().contains("node 9"), "{error}");
    }

    #[test]
    fn a_change_says_before_and_after() {
        let text = change("reserve", PageSize::Huge2M, 1500, Some(NumaNode(1)), (0, 1500)).to_text();
        assert_eq!(text, "reserve 1,500 pages of 2 MiB on node 1: 0 before, 1,500 after");
        let text = change("release", PageSize::Huge1G, 1, None, (2, 2)).to_text();
        assert_eq!(text, "release 1 pages of 1 GiB: 2 before, 2 after; none was free");
    }
}
