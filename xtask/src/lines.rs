//! Counts the lines of product code: of the crates that the binary is made of, without tests,
//! comments and blank lines.

use std::fs;
use std::path::Path;

use anyhow::Context;

const PRODUCT: [&str; 5] = ["protocol", "oauth", "cluster", "gateway", "rialto"];

pub fn run(repository: &Path) -> anyhow::Result<()> {
    let mut sum = 0;
    for name in PRODUCT {
        let lines = of_folder(&repository.join("crates").join(name).join("src"))?;
        println!("{lines:>7}  {name}");
        sum += lines;
    }
    println!("{sum:>7}  in all");
    Ok(())
}

fn of_folder(folder: &Path) -> anyhow::Result<usize> {
    let mut sum = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            sum += of_folder(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            sum += of_file(&text);
        }
    }
    Ok(sum)
}

/// Returns the lines of one file that count. A module of tests begins and ends at the left margin,
/// as rustfmt puts it.
fn of_file(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let begins = lines.next().unwrap_or_default();
            if begins.starts_with("mod ") && begins.ends_with('{') {
                lines.by_ref().find(|line| *line == "}");
            }
            continue;
        }
        let line = line.trim_start();
        count += usize::from(!line.is_empty() && !line.starts_with("//"));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_product_counts() {
        let text = "//! Doc.\n\nfn one() {\n    // Why.\n    two();\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\nfn three() {}\n#[cfg(test)]\nmod more;\n";
        assert_eq!(of_file(text), 4);
    }
}
