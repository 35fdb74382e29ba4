//! Durations as people write them: `10`, `0.5`, `500ms`, `30s`, `5m`, `1h`.

use std::time::Duration;

/// A number of seconds, or of the unit behind it. Fractions are fine; signs and exponents are not.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let unit_secs = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(String::from(EXPECTED)),
    };
    let number: f64 = number.parse().map_err(|_| String::from(EXPECTED))?;
    Duration::try_from_secs_f64(number * unit_secs).map_err(|_| String::from("too long"))
}

const EXPECTED: &str = "not a duration such as 10 (seconds), 0.5, 500ms, 30s, 5m or 1h";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions_are_read() {
        for (text, ms) in [
            ("0", 0),
            ("10", 10_000),
            ("0.5", 500),
            (".5", 500),
            ("0.1", 100),
            ("500ms", 500),
            ("30s", 30_000),
            ("1.5m", 90_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", ".", "s", "-1", "+1", "1e3", "1.2.3", "inf", "NaN", "5 s", "5d", "1S", "é"]
        {
            assert_eq!(parse(text), Err(EXPECTED.into()), "{text}");
        }
        assert_eq!(parse(&"9".repeat(30)), Err("too long".into()));
    }
}
