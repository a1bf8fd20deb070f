//! Which character separates the cells of a table: a comma, or what spreadsheets write in its place.

/// Separators that tables have; at equal numbers the first is it.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

/// The separator of the table that starts with `text`: the one that its header line, the first that is not blank, has
/// most of outside quotes. A comma where it has none, as in a table of one column.
pub(crate) fn separator(text: &[u8]) -> u8 {
    let mut lines = text.split(|byte| *byte == b'\n');
    let header = lines.find(|line| !line.iter().all(u8::is_ascii_whitespace)).unwrap_or_default();
    let mut counts = [0u32; SEPARATORS.len()];
    let mut quoted = false;
    for byte in header {
        quoted ^= *byte == b'"';
        if !quoted && let Some(place) = SEPARATORS.iter().position(|known| known == byte) {
            counts[place] += 1;
        }
    }
    let most = counts.iter().max();
    counts.iter().position(|count| Some(count) == most).map_or(b',', |place| SEPARATORS[place])
}

/// How tables are read: by their own separator, blanks around cells left out.
pub(crate) fn table_reader(text: &str) -> csv::ReaderBuilder {
    let mut builder = csv::ReaderBuilder::new();
    builder.delimiter(separator(text.as_bytes())).trim(csv::Trim::All);
    builder
}

#[cfg(test)]
mod tests {
    use super::separator;

    #[test]
    fn the_header_tells_the_separator() {
        for (text, expected) in [
            ("a,b\n1;2;3\n", b','),
            ("\n \r\na;b;c\n1,5;2;3", b';'),
            ("a\tb\r\n", b'\t'),
            ("tokens\n5\n", b','),
            ("\"a;b;c\",d\n", b','),
            ("\"a,b,c\";d", b';'),
            ("", b','),
        ] {
            assert_eq!(separator(text.as_bytes()), expected, "{text:?}");
        }
    }
}
