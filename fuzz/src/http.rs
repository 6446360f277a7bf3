//! Strict parser of HTTP/1.1 responses.

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub json: bool,
    pub body: Vec<u8>,
}

/// Parses `bytes` completely into responses. Only the last response may have no length.
#[track_caller]
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            other => panic!("not an answer: {other:?}: {:?}", String::from_utf8_lossy(bytes)),
        };
        let is = |header: &httparse::Header<'_>, name: &str| header.name.eq_ignore_ascii_case(name);
        let status = response.code.expect("a status");
        let mut length = 0;
        let mut json = false;
        let mut dates = 0;
        for header in response.headers.iter() {
            let value = std::str::from_utf8(header.value).expect("headers are text");
            assert!(!value.contains(char::is_control), "{header:?}");
            assert!(!is(header, "transfer-encoding"), "every answer has a length");
            if is(header, "content-length") {
                length = value.parse().expect("a length");
            }
            json |= is(header, "content-type") && value == "application/json";
            dates += usize::from(is(header, "date"));
        }
        // An interim response has no body.
        assert_eq!(dates, usize::from(status >= 200), "one date");
        let (body, rest) =
            bytes[head..].split_at_checked(length).expect("the body is shorter than its length");
        answers.push(Answer { status, json, body: body.to_vec() });
        bytes = rest;
    }
    answers
}
