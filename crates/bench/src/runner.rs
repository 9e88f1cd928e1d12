//! The run: every row on every system, in rounds, so that a moody machine is moody to all of them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use crate::row::{Effort, Row};
use crate::system::{Programs, System};

/// A measurement that takes this much longer than it should has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Run {
    pub rows: Vec<Row>,
    pub systems: Vec<System>,
    pub rounds: usize,
    pub effort: Effort,
    pub programs: Programs,
}

/// A cell of the table: one number per figure, or why there is none.
pub type Cell = Result<Vec<f64>, String>;

/// What came out.
#[derive(Debug, Default)]
pub struct Results {
    pub cells: BTreeMap<(Row, System), Cell>,
}

impl Results {
    /// One number of the table.
    pub fn number(&self, row: Row, figure: usize, system: System) -> Option<f64> {
        match self.cells.get(&(row, system)) {
            Some(Ok(numbers)) => numbers.get(figure).copied(),
            Some(Err(_)) | None => None,
        }
    }
}

impl Run {
    /// Measures. What it is about to do and what it found goes to stderr.
    pub async fn carry_out(&self) -> Results {
        let mut results = Results::default();
        for row in &self.rows {
            print_line(row.title());
            let mut found: BTreeMap<System, Result<Vec<Vec<f64>>, String>> = BTreeMap::new();
            for round in 0..self.rounds {
                for turn in 0..self.systems.len() {
                    // No system is always the first, or always comes after the same one.
                    let system = self.systems[(turn + round) % self.systems.len()];
                    let Ok(rounds) = found.entry(system).or_insert_with(|| Ok(Vec::new())) else {
                        continue;
                    };
                    let measuring = row.measure(system, &self.programs, self.effort);
                    let cell = match tokio::time::timeout(PATIENCE + self.effort.time, measuring).await {
                        Ok(Ok(numbers)) => Ok(numbers),
                        Ok(Err(error)) => Err(format!("{error:#}")),
                        Err(_) => Err("no answer in time".to_owned()),
                    };
                    match cell {
                        Ok(numbers) => {
                            print_line(&format!("  {}: {}", system.name(), shown(&numbers)));
                            rounds.push(numbers);
                        }
                        Err(why) => {
                            if why != "–" {
                                print_line(&format!("  {}: {why}", system.name()));
                            }
                            found.insert(system, Err(why));
                        }
                    }
                }
            }
            for (system, rounds) in found {
                results
                    .cells
                    .insert((*row, system), rounds.map(|rounds| medians(&rounds)));
            }
        }
        results
    }
}

fn shown(numbers: &[f64]) -> String {
    let texts: Vec<String> = numbers.iter().map(|number| format!("{number:.4}")).collect();
    texts.join("  ")
}

/// The median of each figure; of two rounds, their mean.
fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let figures = rounds.iter().map(Vec::len).min().unwrap_or(0);
    (0..figures)
        .map(|figure| {
            let mut numbers: Vec<f64> = rounds.iter().map(|round| round[figure]).collect();
            numbers.sort_by(f64::total_cmp);
            let middle = numbers.len() / 2;
            match numbers.len() % 2 {
                0 => (numbers[middle - 1] + numbers[middle]) / 2.0,
                _ => numbers[middle],
            }
        })
        .collect()
}

/// Prints a line about the progress.
pub fn print_line(text: &str) {
    // If stderr is closed, no line is needed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_joined_by_their_median() {
        assert_eq!(medians(&[vec![1.0, 5.0], vec![3.0, 7.0]]), [2.0, 6.0]);
        assert_eq!(medians(&[vec![9.0], vec![1.0], vec![3.0]]), [3.0]);
    }
}
