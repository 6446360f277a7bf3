//! Functions that the fuzz targets share.

pub mod http;
mod memory;
pub mod resp;
pub mod yaml;

pub use memory::bounded;

/// Cuts `bytes` into pieces. The first byte selects the cuts: `0` leaves the rest in one piece.
pub fn cut(bytes: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (how, whole) = bytes.split_first()?;
    let mut state = u32::from(how ^ b'0');
    if state == 0 {
        return Some((whole, vec![whole]));
    }
    let longest = 1 << (state % 8);
    let (mut rest, mut pieces) = (whole, Vec::new());
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = 1 + (state >> 16) as usize % longest;
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    Some((whole, pieces))
}

/// Asserts that a text for people is one line without control characters.
#[track_caller]
pub fn assert_plain_line(text: &str) {
    assert!(!text.is_empty(), "the text is empty");
    assert!(!text.contains(char::is_control), "not one line of plain text: {text:?}");
}
