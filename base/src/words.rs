//! Numbers, sizes and times as people read them.

/// Bytes for people: three digits and a binary unit.
pub fn human_bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit])
}

/// A number of things.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number with its thousands separated.
pub fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A number for people who want its magnitude: unchanged up to 9,999, else with one decimal and thousands, millions, …
pub fn short(number: u64) -> String {
    if number < 10_000 {
        return grouped(number);
    }
    let (mut value, mut unit) = (number as f64 / 1000.0, 0);
    while value >= 999.95 && unit < 4 {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", ["k", "M", "G", "T", "P"][unit])
}

/// A time for people, to two digits or so.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 99.5 * 60.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

/// A time in seconds since 1970 as a date and a time of day in UTC.
pub fn date(seconds: u64) -> String {
    // Days since the first of March of the year 0: leap days are then at the ends of years, and a cycle of 400 years has
    // 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 153 days for every five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * cycle + year + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_binary_units() {
        assert_eq!(human_bytes(1000), "1000 B");
        assert_eq!(human_bytes(116_621_312), "111.2 MiB");
        assert_eq!(human_bytes(1 << 30), "1.0 GiB");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0, 9_999, 10_000, 999_949, 999_951, 8_192_000, 1 << 40].map(short);
        assert_eq!(shown, ["0", "9,999", "10.0 k", "999.9 k", "1.0 M", "8.2 M", "1.1 T"]);
        let times = [0.2, 9.97, 99.0, 100.0, 5900.0, 6000.0, 1e6].map(duration);
        assert_eq!(times, ["0.2 s", "10 s", "99 s", "2 min", "98 min", "1.7 h", "11.6 days"]);
        assert_eq!([counted(1, "step"), counted(2, "step")], ["1 step", "2 steps"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (1_772_323_200, "2026-03-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
