//! Numbers in decimal, one or two of them, in a buffer that costs no allocation. The standard way to write them costs several times as much, and
//! each message has some.

/// What the longest number takes.
const LONGEST: usize = 20;

/// A number, written; or two with a hyphen between them.
pub(crate) struct Digits {
    buffer: [u8; 2 * LONGEST + 1],
    start: usize,
}

impl Digits {
    pub(crate) fn of(number: u64) -> Self {
        Self {
            buffer: [b'-'; 2 * LONGEST + 1],
            start: 2 * LONGEST + 1,
        }
        .after(number)
    }

    /// `first-second`.
    pub(crate) fn pair(first: u64, second: u64) -> Self {
        let mut digits = Self::of(second);
        // Where nothing was written stands a hyphen.
        digits.start -= 1;
        digits.after(first)
    }

    /// What is written, after a number. There is room for two.
    fn after(mut self, number: u64) -> Self {
        let mut rest = number;
        loop {
            self.start -= 1;
            self.buffer[self.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self;
            }
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        // ASCII, as it was written above.
        std::str::from_utf8(self).unwrap_or_default()
    }
}

impl std::ops::Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_everywhere() {
        for number in [0, 7, 10, 99, 100, 4_294_967_296, u64::MAX] {
            let digits = Digits::of(number);
            assert_eq!(&digits[..], number.to_string().as_bytes());
            assert_eq!(digits.as_str(), number.to_string());
            for second in [0, 10, u64::MAX] {
                assert_eq!(
                    Digits::pair(number, second).as_str(),
                    format!("{number}-{second}")
                );
            }
        }
    }
}
