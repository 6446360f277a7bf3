//! Strict parser of replies of the Redis protocol.

/// Kind of a reply. Numbers and texts depend on the time, errors do not.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Simple,
    Error(String),
    Integer,
    /// A text or nil.
    Text,
    List(Vec<Answer>),
}

/// Parses `bytes` completely into replies.
#[track_caller]
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        answers.push(answer(&mut bytes));
    }
    answers
}

#[track_caller]
fn answer(bytes: &mut &[u8]) -> Answer {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").expect("a line ends");
    let (line, rest) = bytes.split_at(end);
    *bytes = &rest[2..];
    let line = std::str::from_utf8(line).expect("a line is text");
    assert!(line.bytes().all(|b| b.is_ascii_graphic() || b == b' '), "{line:?}");
    let (kind, text) = line.split_at(1);
    let number = || text.parse::<i64>().expect("a number");
    let mut list = |n: i64| Answer::List((0..n).map(|_| answer(bytes)).collect());
    match kind {
        "+" => Answer::Simple,
        "-" => Answer::Error(text.to_owned()),
        ":" => {
            number();
            Answer::Integer
        }
        "_" | "$" if text.is_empty() || text == "-1" => Answer::Text,
        "$" => {
            let length = usize::try_from(number()).expect("a length");
            let (_, rest) = bytes.split_at_checked(length).expect("the text is shorter than its length");
            *bytes = rest.strip_prefix(b"\r\n").expect("a line end");
            Answer::Text
        }
        "*" => list(number()),
        "%" => list(2 * number()),
        _ => panic!("not an answer: {line}"),
    }
}
