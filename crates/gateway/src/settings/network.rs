//! A range of addresses.

use std::net::IpAddr;

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "not a range of addresses: write one such as 10.0.0.0/8, fd00::/8 or 127.0.0.1";
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| FORM.to_owned())?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or(FORM)?,
            None => most,
        };
        Ok(Self { address, bits })
    }

    /// An IPv4 address may come in the clothes of an IPv6 one, on a listener for both.
    pub fn contains(&self, peer: IpAddr) -> bool {
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                u32::from(ours) & mask == u32::from(theirs) & mask
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                u128::from(ours) & mask == u128::from(theirs) & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}
