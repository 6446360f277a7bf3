//! Finds the ends of commands in the bytes of a client: RESP arrays of bulk strings, in chunks of any size.

/// Incremental parser that counts commands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commands {
    /// First byte of the current line. `number` holds its digits so far.
    kind: Option<u8>,
    number: u64,
    /// Number of bulk strings of this command that are still to come.
    strings: u64,
    /// Number of bytes of this bulk string that are still to come, with its line end.
    bytes: u64,
}

impl Commands {
    /// Consumes the next bytes and returns the number of commands that end in them.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> u64 {
        bytes.iter().filter(|byte| self.ends_with(**byte)).count() as u64
    }

    /// Returns the number of bytes that belong to the next `count` commands.
    pub(crate) fn end_of(&self, count: u64, bytes: &[u8]) -> usize {
        let mut ahead = *self;
        let mut ends = (1..).zip(bytes).filter(|(_, byte)| ahead.ends_with(**byte)).map(|(end, _)| end);
        match count.checked_sub(1) {
            Some(before) => ends.nth(before as usize).unwrap_or(bytes.len()),
            None => 0,
        }
    }

    fn ends_with(&mut self, byte: u8) -> bool {
        if self.bytes > 0 {
            self.bytes -= 1;
            return self.bytes == 0 && self.string_ended();
        }
        let kind = *self.kind.get_or_insert(byte);
        match byte {
            b'0'..=b'9' => {
                self.number = self.number.saturating_mul(10).saturating_add((byte - b'0').into());
                false
            }
            b'\n' => {
                let number = std::mem::take(&mut self.number);
                self.kind = None;
                match kind {
                    b'*' => self.strings = number,
                    b'$' => self.bytes = number.saturating_add(2),
                    // An inline command. An empty line is not a command.
                    _ => return !matches!(kind, b'\r' | b'\n'),
                }
                false
            }
            _ => false,
        }
    }

    fn string_ended(&mut self) -> bool {
        self.strings = self.strings.saturating_sub(1);
        self.strings == 0
    }
}

#[test]
fn finds_command_ends_in_chunks_of_any_size() {
    let commands: [&[u8]; 4] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8\r\n*1\r\n$4\r\n\r\n",
        b"PING\r\n",
        b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
    ];
    let bytes = &commands.concat()[..];
    for size in 1..=bytes.len() {
        let mut commands = Commands::default();
        let read: u64 = bytes.chunks(size).map(|piece| commands.read(piece)).sum();
        assert_eq!(read, 4, "in pieces of {size}");
    }
    for count in 1..=4 {
        let end = commands[..count].concat().len();
        assert_eq!(Commands::default().end_of(count as u64, bytes), end);
    }
    assert_eq!(Commands::default().end_of(0, bytes), 0);
    assert_eq!(Commands::default().end_of(9, bytes), bytes.len());
}
