//! Numbers as people read them.

use crate::units::SECONDS_PER_DAY;

/// A whole number with thousands separated by commas.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    if (0..=6).contains(&digits) { format!("{value:.*}", digits as usize) } else { format!("{value:.2e}") }
}

/// A rate or count with as many digits as matter: 1,482 or 62.1 or 0.36.
pub fn rate(number: f64) -> String {
    if number >= 999.5 {
        thousands(number.round() as u64)
    } else if number >= 99.95 {
        format!("{number:.0}")
    } else if number >= 0.995 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}

/// Tokens in bulk: 1.66 B, 3.4 M or 1,234.
pub fn tokens(number: u64) -> String {
    match number {
        0..10_000_000 => thousands(number),
        10_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        _ => format!("{:.3} B", number as f64 / 1e9),
    }
}

/// A time in the unit that suits it.
pub fn duration(seconds: f64) -> String {
    if seconds >= 2.0 * SECONDS_PER_DAY {
        format!("{:.2} days", seconds / SECONDS_PER_DAY)
    } else if seconds >= 2.0 * 3600.0 {
        format!("{:.2} hours", seconds / 3600.0)
    } else if seconds >= 120.0 {
        format!("{:.1} min", seconds / 60.0)
    } else if seconds >= 1.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.1} ms", seconds * 1e3)
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 {
        "0%".to_owned()
    } else if percent < 0.1 {
        "<0.1%".to_owned()
    } else if percent < 9.95 || (99.0..99.95).contains(&percent) {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// `text` under a label of `indent` characters, broken between words so that no line is longer than `width` where words
/// allow; lines end with a line break.
pub fn labelled(label: &str, text: &str, indent: usize, width: usize) -> String {
    let mut lines = format!("{label:<indent$}");
    let mut column = lines.chars().count();
    let mut fresh = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !fresh && column + 1 + length > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            (column, fresh) = (indent, true);
        }
        if !fresh {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        (column, fresh) = (column + length, false);
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_keeps_to_its_column() {
        assert_eq!(labelled("ab", "one two three", 4, 11), "ab  one two\n    three\n");
        assert_eq!(labelled("", "anunbreakableword x", 2, 8), "  anunbreakableword\n  x\n");
        assert_eq!(labelled("a", "", 2, 8), "a \n");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(914_000), "914,000");
        assert_eq!(thousands(12), "12");
        assert_eq!(rate(1481.7), "1,482");
        assert_eq!(rate(62.12), "62.1");
        assert_eq!(tokens(1_657_000_000), "1.657 B");
        assert_eq!(duration(16.5 * 86_400.0), "16.50 days");
        assert_eq!(duration(65.93), "65.9 s");
        assert_eq!(percent(0.0004), "<0.1%");
        assert_eq!(percent(0.9987), "99.9%");
        assert_eq!(percent(0.99997), "100%");
        assert_eq!(percent(1.0), "100%");
    }
}
