//! The matrix of eras for hosts that start programs: official SDK clients of both eras with their
//! own stdio transports, `rialto connect` as the program, and official servers of both eras on
//! every kind of HTTP transport behind it.
//!
//! Cells, scenarios and what cannot be are those of `remote_matrix`. Nothing is configured:
//! `connect` is given an address and finds transport and era by itself.

mod by_connect;

testkit::remote_matrix!(crate::by_connect::play);
