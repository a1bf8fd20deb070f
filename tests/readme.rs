//! What the README shows is what the program prints: every block that begins with `$ makespan` is run again.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

use std::path::Path;

use assert_cmd::Command;

/// A command and where the output shown for it stands.
struct Shown {
    arguments: Vec<String>,
    /// Lines of the README, from 0.
    output: std::ops::Range<usize>,
}

/// Arguments as a shell would split them; single quotes hold one together.
fn arguments(line: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (index, piece) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            parts.push(piece.to_owned());
        } else {
            parts.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    parts
}

/// Blocks of one command with its output, and a block of one command with the output in the next. A block of several
/// commands shows what can be typed and no output.
fn shown(lines: &[String]) -> Vec<Shown> {
    let fences: Vec<usize> = (0..lines.len()).filter(|&line| lines[line].starts_with("```")).collect();
    let mut all = Vec::new();
    for (index, fence) in fences.chunks_exact(2).enumerate() {
        let block = fence[0] + 1..fence[1];
        let commands = lines[block.clone()].iter().filter(|line| line.starts_with("$ ")).count();
        let Some(command) = ["$ makespan", "$ cargo run --release"]
            .iter()
            .find_map(|start| lines.get(block.start)?.strip_prefix(start))
            .filter(|_| commands == 1)
        else {
            continue;
        };
        let output = match fences.chunks_exact(2).nth(index + 1) {
            _ if block.len() > 1 => block.start + 1..block.end,
            Some(next) if next[0] - block.end <= 2 => next[0] + 1..next[1],
            _ => continue,
        };
        all.push(Shown { arguments: arguments(command.trim_start_matches(" --")), output });
    }
    all
}

/// The wall time of a run differs from one to the next.
fn without_time(line: &str) -> String {
    match (line.find(" in "), line.find(" s, seed")) {
        (Some(start), Some(end)) if start < end => format!("{} in TIME{}", &line[..start], &line[end..]),
        _ => line.to_owned(),
    }
}

/// Whether `printed` is what is shown; a line `...` stands for any lines.
fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, others)| line == first && matches(rest, others))
        }
    }
}

/// With `UPDATE_README=1` it writes what is printed into the README instead, but for blocks with `...`.
#[test]
fn the_readme_shows_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("README.md");
    let mut lines: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let update = std::env::var_os("UPDATE_README").is_some();
    let all = shown(&lines);
    assert!(all.len() >= 2, "the README shows outputs");
    // From the end, so that an update leaves the places of those before it.
    for block in all.into_iter().rev() {
        let output = Command::cargo_bin("makespan").unwrap().current_dir(root).args(&block.arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let printed: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        let timeless = |lines: &[String]| lines.iter().map(|line| without_time(line.trim_end())).collect::<Vec<_>>();
        let shown = timeless(&lines[block.output.clone()]);
        if matches(&shown, &timeless(&printed)) {
            continue;
        }
        assert!(
            update && !shown.iter().any(|line| line == "..."),
            "README.md:{}: makespan {} prints\n{text}",
            block.output.start + 1,
            block.arguments.join(" ")
        );
        lines.splice(block.output, printed);
    }
    if update {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
}

#[test]
fn an_ellipsis_stands_for_any_lines_and_nothing_else_does() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&lines("a\n...\nd"), &lines("a\nb\nc\nd")));
    assert!(!matches(&lines("a\n...\nd"), &lines("a\nb\nc")));
    assert!(!matches(&lines("a"), &lines("a\nb")));
}
