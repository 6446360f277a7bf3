//! Keys: each can be parsed again, so no two inputs have the same key. Only a tag has braces, so a client cannot choose
//! a slot. The length is bounded, and keys are printed unchanged.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use slidegate::{bounds::MAX_PLAIN_VALUE, Key};
use slidegate_fuzz::assert_plain_line;

#[derive(Arbitrary, Clone, Debug, PartialEq)]
struct Parts {
    tag: Option<(String, String)>,
    rule: String,
    values: Vec<(String, String)>,
}

#[derive(Arbitrary, Debug)]
struct Input {
    parts: Parts,
    /// Index of the value that `other` replaces, if it exists.
    at: u8,
    other: String,
}

fuzz_target!(|input: Input| {
    let key = write(&input.parts);
    assert_eq!(read(key.as_str()), shortened(&input.parts));
    let text = key.as_str();
    assert_eq!(Key::printed(text), key);
    assert_eq!(key.to_string(), text);
    if !text.is_empty() {
        assert_plain_line(text);
    }
    assert!(!text.contains(' '));
    assert_eq!(key.tag().is_some(), input.parts.tag.is_some());
    assert_eq!(text.matches(['{', '}']).count(), if key.tag().is_some() { 2 } else { 0 });
    let (hashed, expected) = slidegate::fuzzing::hashed(&key);
    assert_eq!(hashed, if text.is_empty() { "sg:{}" } else { &expected });
    for (_, value) in read(text).values {
        assert!(value.len() <= MAX_PLAIN_VALUE);
    }

    let mut others = input.parts.clone();
    let count = others.values.len();
    if count > 0 {
        others.values[usize::from(input.at) % count].1 = input.other;
        assert_eq!(write(&others) == key, others == input.parts);
    }
});

fn write(Parts { tag, rule, values }: &Parts) -> Key {
    let values = values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    match tag {
        Some((name, value)) => Key::tagged((name, value), rule, values),
        None => Key::new(rule, values),
    }
}

/// Replaces long values by their digests.
fn shortened(parts: &Parts) -> Parts {
    let short = |(name, value): &(String, String)| {
        if value.len() <= MAX_PLAIN_VALUE {
            return (name.clone(), value.clone());
        }
        let digest = Sha256::digest(value.as_bytes());
        let digest: String = digest[..16].iter().map(|byte| format!("{byte:02X}")).collect();
        // No input value has this prefix.
        (name.clone(), format!("\0#{digest}"))
    };
    Parts {
        tag: parts.tag.as_ref().map(short),
        rule: parts.rule.clone(),
        values: parts.values.iter().map(short).collect(),
    }
}

fn read(text: &str) -> Parts {
    let (tag, rest) = match text.strip_prefix('{') {
        Some(inside) => {
            let (tag, rest) = inside.split_once('}').expect("a tag ends");
            (Some(attribute(tag)), rest)
        }
        None => (None, text),
    };
    let (rule, values) = rest.split_once(':').map_or((rest, None), |(rule, values)| (rule, Some(values)));
    let values = values.map(|values| values.split(':').map(attribute).collect());
    Parts { tag, rule: plain(rule), values: values.unwrap_or_default() }
}

fn attribute(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').expect("a name and a value");
    let value = if value.starts_with('#') { format!("\0{value}") } else { plain(value) };
    (plain(name), value)
}

fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (hex, after) = rest.split_at(2);
            bytes.push(u8::from_str_radix(std::str::from_utf8(hex).expect("hex"), 16).expect("hex"));
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).expect("text")
}
