//! Where results, tables and numbers go.
//!
//! With `--json` standard output carries exactly one object at the end and people's text goes to standard error; without, people's
//! text is the result and goes to standard output. A reader that closes standard output early ends the text, never the
//! program: [`Screen::is_lost`] says so, and who runs for long looks at it.

use crate::error::AppError;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// What the user asked to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tables.
    People,
    /// One JSON object.
    Json,
}

impl Format {
    /// From the `--json` switch.
    pub(crate) fn from_switch(json: bool) -> Format {
        if json { Format::Json } else { Format::People }
    }
}

/// Where people's text goes.
pub(crate) struct Screen {
    sink: Sink,
    lost: Option<io::Error>,
}

enum Sink {
    Out(io::Stdout),
    Err(io::Stderr),
}

impl Screen {
    /// The stream that `format` leaves to people.
    pub(crate) fn new(format: Format) -> Screen {
        let sink = match format {
            Format::People => Sink::Out(io::stdout()),
            Format::Json => Sink::Err(io::stderr()),
        };
        Screen { sink, lost: None }
    }

    /// Whether a person looks at it, so that lines can be redrawn.
    pub(crate) fn is_terminal(&self) -> bool {
        match &self.sink {
            Sink::Out(stream) => stream.is_terminal(),
            Sink::Err(stream) => stream.is_terminal(),
        }
    }

    /// Writes `text` as it is, in one piece.
    pub(crate) fn print(&mut self, text: &str) {
        if self.is_lost() {
            return;
        }
        let written = match &mut self.sink {
            Sink::Out(stream) => stream.write_all(text.as_bytes()).and_then(|()| stream.flush()),
            Sink::Err(stream) => stream.write_all(text.as_bytes()),
        };
        self.lost = written.err();
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    /// Whether nothing more can be written: the reader left, or the disk is full.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Says whether the text that is the result was delivered. A reader that left had enough of it.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) fn close(self) -> Result<(), AppError> {
        match (self.sink, self.lost) {
            (Sink::Out(_), Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(AppError::Output(error))
            }
            _ => Ok(()),
        }
    }
}

/// Writes a listing for people.
///
/// # Errors
/// It could not be delivered.
pub(crate) fn write_text(text: &str) -> Result<(), AppError> {
    let mut screen = Screen::new(Format::People);
    screen.print(text);
    screen.close()
}

/// Writes `value` as the one JSON object on standard output.
///
/// # Errors
/// It could not be delivered.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), AppError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| AppError::Output(error.into()))?;
    let mut stream = io::stdout();
    writeln!(stream, "{text}").and_then(|()| stream.flush()).map_err(AppError::Output)
}

/// A table without lines: words to the left, numbers to the right.
pub(crate) fn table(
    header: &[&str],
    numbers: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest binary unit that gives a whole number.
pub(crate) fn bytes(number: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let fits = units.iter().find(|(_, unit)| number >= *unit && number.is_multiple_of(*unit));
    match fits {
        Some((name, unit)) => format!("{} {name}", thousands(number / unit)),
        None => format!("{} bytes", thousands(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_every_three_digits() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ];
        for (number, text) in cases {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn bytes_take_the_largest_unit_that_divides_them() {
        let cases = [
            (0, "0 bytes"),
            (1000, "1,000 bytes"),
            (2 << 20, "2 MiB"),
            (1 << 30, "1 GiB"),
            (3 << 9, "1,536 bytes"),
        ];
        for (number, text) in cases {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn tables_align_numbers_to_the_right_and_end_lines_bare() {
        let text = table(
            &["size", "free"],
            &[1],
            [vec!["2 MiB".into(), "7".into()], vec!["1 GiB".into(), "1,024".into()]],
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["size    free", "2 MiB      7", "1 GiB  1,024"]);
    }
}
