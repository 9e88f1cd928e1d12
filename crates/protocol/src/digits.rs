//! Numbers in decimal, in a buffer that costs no allocation. The standard way to write them costs several times as much, and
//! each message has some.

/// A number, written.
pub(crate) struct Digits {
    buffer: [u8; 20],
    start: usize,
}

impl Digits {
    pub(crate) fn of(number: u64) -> Self {
        let mut digits = Self {
            buffer: [0; 20],
            start: 20,
        };
        let mut rest = number;
        loop {
            digits.start -= 1;
            digits.buffer[digits.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return digits;
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
        }
    }
}
