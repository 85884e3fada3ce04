//! Times and numbers, as people write them on a command line.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A time as people write it: `30s`, `1.5h`, `1m30s`, `500ms`, `2d`; a number alone means seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no time (such as 30s, 500ms, 5m, 1h30m or 2d)");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) =
            rest.split_at(rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            // Without a unit it is all of the text.
            "" if number == text => 1.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(time).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// A time above zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        none if none < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        some => Ok(some),
    }
}

/// A time in the same form.
pub(crate) fn text(time: Duration) -> String {
    // Of a long time nobody wants to know the milliseconds.
    let mut ms = if time < Duration::from_secs(1) { time.as_millis() } else { (time.as_millis() + 50) / 100 * 100 };
    let mut text = String::new();
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m")] {
        if ms >= unit {
            text += &format!("{}{name}", ms / unit);
            ms %= unit;
        }
    }
    match ms {
        0 if !text.is_empty() => text,
        ms if ms < 1000 && text.is_empty() => format!("{ms}ms"),
        ms if ms % 1000 == 0 => format!("{text}{}s", ms / 1000),
        ms => format!("{text}{}.{}s", ms / 1000, ms % 1000 / 100),
    }
}

/// Reads a whole number of this range.
pub(crate) fn number(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    move |text| {
        let (min, max) = (range.start(), range.end());
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("\"{text}\" is no number from {min} to {max}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_they_are_read() {
        for written in ["1s", "1.5s", "30m", "1h30m", "2d", "500ms", "1m5s", "0ms", "1m0.5s"] {
            assert_eq!(text(time(written).expect("a time")), written);
        }
        assert_eq!(text(Duration::from_micros(1_987_654)), "2s");
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let ms = |text: &str| time(text).map(|time| time.as_millis());
        for (text, expected) in
            [("30", 30_000), ("1.5", 1500), ("500ms", 500), ("1h30m", 5_400_000), ("2d", 172_800_000)]
        {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        assert_eq!(ms("0"), Ok(0));
        for text in ["", "s", "-1s", "1x", "1h30", "1 s", "1..2s", "99999999999999999999d"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(some_time("0").is_err() && some_time("1ms").is_ok());
    }
}
