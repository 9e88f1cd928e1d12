//! A client's messages ↔ Ask / Tell: one file per era. A face translates only foreign words.

pub mod legacy;
pub mod modern;
pub mod stdio;
