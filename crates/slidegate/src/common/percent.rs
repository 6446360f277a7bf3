//! Percentages in hundredths of a percent.

/// Parses a percentage and returns it in hundredths of a percent: `12.5%` is 1,250. The text may have at most six
/// digits before the decimal point and two after it.
#[cfg(feature = "yaml")]
pub fn hundredths(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?.trim_end();
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits =
        |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 6) || !digits(decimals, 2) {
        return None;
    }
    let decimals = decimals.parse::<u32>().ok()? * if decimals.len() == 1 { 10 } else { 1 };
    Some(whole.parse::<u32>().ok()? * 100 + decimals)
}

/// Writes a share, given in hundredths of a percent, as text that [`hundredths`] parses: 1,250 is `12.50%`.
pub(crate) fn percent(share: u32) -> String {
    let (whole, rest) = (share / 100, share % 100);
    if rest == 0 { format!("{whole}%") } else { format!("{whole}.{rest:02}%") }
}
