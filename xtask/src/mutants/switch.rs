//! Writes many mutants into one source text, each behind a switch that is set at run time.
//!
//! cargo-mutants builds the crate once for each mutant, which takes most of the time. A text that
//! holds all of them is built once. It is the same change that cargo-mutants would make: the
//! replaced operator, the deleted `!`, arm or guard, or the early return of a value.
//!
//! A mutant that cannot be written so is left out, and so are those that the compiler refuses:
//! [`blamed`] finds them. A build of such a mutant alone decides whether it can be built.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Context;
use proc_macro2::Span;
use serde_json::Value;
use syn::fold::{self, Fold};
use syn::spanned::Spanned;

/// The function that the switched code calls, and its definition for the crate's root.
pub const DEFINITION: &str = r#"
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub fn __is_mutant(number: usize) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("MUTANT").ok()?.parse().ok()) == Some(number)
}
"#;

/// What kind of change a mutant is, as cargo-mutants names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    Other,
}

/// A place in a text, both counted from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
}

/// One change to one file.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub name: String,
    pub file: String,
    genre: Genre,
    replacement: String,
    from: Place,
    to: Place,
    return_type: String,
}

impl Mutant {
    /// Reads an entry of `cargo mutants --list --json`.
    pub fn read(entry: &Value) -> anyhow::Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let place = |value: &Value| -> Option<Place> {
            Some(Place {
                line: usize::try_from(value["line"].as_u64()?).ok()?,
                column: usize::try_from(value["column"].as_u64()?).ok()?,
            })
        };
        let genre = match entry["genre"].as_str().unwrap_or_default() {
            "FnValue" => Genre::FnValue,
            "BinaryOperator" => Genre::BinaryOperator,
            "UnaryOperator" => Genre::UnaryOperator,
            "MatchArm" => Genre::MatchArm,
            "MatchArmGuard" => Genre::MatchArmGuard,
            _ => Genre::Other,
        };
        Ok(Self {
            name: text(&entry["name"]).context("a mutant has no name")?,
            file: text(&entry["file"]).context("a mutant has no file")?,
            genre,
            replacement: text(&entry["replacement"]).unwrap_or_default(),
            from: place(&entry["span"]["start"]).context("a mutant has no place")?,
            to: place(&entry["span"]["end"]).context("a mutant has no end")?,
            return_type: text(&entry["function"]["return_type"]).unwrap_or_default(),
        })
    }
}

/// A text with its mutants.
#[derive(Debug, Default)]
pub struct Switched {
    pub text: String,
    /// Where the code of each mutant is, by its number.
    fragments: Vec<(Range<usize>, usize)>,
    /// Mutants in functions that were `const`, with the name of the function.
    unconst: Vec<(String, usize)>,
    /// Deleted arms: they make a match incomplete, which the compiler reports elsewhere.
    arms: Vec<usize>,
    /// Mutants that cannot be switched.
    pub left_out: Vec<usize>,
}

/// Writes these mutants into a text. Each has a number, by which it is switched on.
pub fn switched(text: &str, mutants: &[(usize, &Mutant)]) -> anyhow::Result<Switched> {
    let file = syn::parse_file(text).context("a file with mutants is no Rust")?;
    let mut sites = Sites::default();
    sites.fold_file(file);
    let lines = line_starts(text);
    let mut source = text.to_owned();
    let mut writer = Writer::default();
    for &(number, mutant) in mutants {
        let (Some(from), Some(to)) = (offset(text, &lines, mutant.from), offset(text, &lines, mutant.to))
        else {
            writer.switched.left_out.push(number);
            continue;
        };
        if let Some(function) = sites.const_fns.iter().find(|known| known.body.contains(&from)) {
            // The switch is no constant. Spaces instead of the word leave all places as they are.
            source.replace_range(function.word.clone(), "     ");
            writer.switched.unconst.push((function.name.clone(), number));
        }
        if !writer.add(number, mutant, from..to, &sites, text) {
            writer.switched.left_out.push(number);
        }
    }
    writer.write(&source, 0..source.len());
    Ok(writer.switched)
}

/// Returns the text with one mutant and no switch.
pub fn mutated(text: &str, mutant: &Mutant) -> anyhow::Result<String> {
    let lines = line_starts(text);
    let place = |place| offset(text, &lines, place);
    let (from, to) = place(mutant.from)
        .zip(place(mutant.to))
        .with_context(|| format!("there is no such place: {}", mutant.name))?;
    let mut mutated = text.to_owned();
    mutated.replace_range(from..to, &mutant.replacement);
    Ok(mutated)
}

fn line_starts(text: &str) -> Vec<usize> {
    let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(breaks).collect()
}

fn offset(text: &str, lines: &[usize], place: Place) -> Option<usize> {
    let start = *lines.get(place.line.checked_sub(1)?)?;
    let line = text.get(start..)?;
    let column = place.column.checked_sub(1)?;
    let within = line.char_indices().map(|(at, _)| at).nth(column);
    Some(start + within.unwrap_or(line.len()))
}

/// The places in a text that a switch needs and that a mutant's own span does not tell.
#[derive(Debug, Default)]
struct Sites {
    /// The whole expression of each binary operator, by the operator's place. Operators without
    /// parentheses between them share one, since another operator may bind otherwise.
    binary: BTreeMap<usize, Range<usize>>,
    /// The whole expression of each unary operator, by the operator's place.
    unary: BTreeMap<usize, Range<usize>>,
    /// The `=>` of each arm without a guard, by the place of its pattern.
    arrows: BTreeMap<usize, usize>,
    const_fns: Vec<ConstFn>,
    /// The expression that the operators met next are a part of.
    chain: Option<Range<usize>>,
}

#[derive(Debug)]
struct ConstFn {
    name: String,
    word: Range<usize>,
    body: Range<usize>,
}

impl Sites {
    fn note_fn(&mut self, signature: &syn::Signature, body: Span) {
        if let Some(word) = &signature.constness {
            self.const_fns.push(ConstFn {
                name: signature.ident.to_string(),
                word: word.span().byte_range(),
                body: body.byte_range(),
            });
        }
    }
}

fn is_let_chain(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => is_let_chain(&binary.left) || is_let_chain(&binary.right),
        _ => false,
    }
}

fn assigns(operator: &syn::BinOp) -> bool {
    use syn::BinOp;
    matches!(
        operator,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

/// Notes the places and changes nothing.
impl Fold for Sites {
    fn fold_expr_binary(&mut self, node: syn::ExprBinary) -> syn::ExprBinary {
        let outer = self.chain.take();
        let own = node.span().byte_range();
        let is_let = is_let_chain(&node.left) || is_let_chain(&node.right);
        // `let` may not stand in parentheses, so its operators have no switch.
        let whole = (!is_let).then(|| outer.unwrap_or(own));
        if let Some(whole) = &whole {
            self.binary
                .insert(node.op.span().byte_range().start, whole.clone());
        }
        let is_assignment = assigns(&node.op);
        let mut fold_side = |side: syn::Expr| {
            self.chain = match &side {
                syn::Expr::Binary(inner) if !is_assignment && !assigns(&inner.op) => whole.clone(),
                _ => None,
            };
            Box::new(self.fold_expr(side))
        };
        let (left, right) = (fold_side(*node.left), fold_side(*node.right));
        self.chain = None;
        syn::ExprBinary {
            attrs: node.attrs,
            left,
            op: node.op,
            right,
        }
    }

    fn fold_expr_unary(&mut self, node: syn::ExprUnary) -> syn::ExprUnary {
        let whole = node.span().byte_range();
        self.unary.insert(whole.start, whole);
        fold::fold_expr_unary(self, node)
    }

    fn fold_arm(&mut self, node: syn::Arm) -> syn::Arm {
        if !matches!(node.pat, syn::Pat::Guard(_)) {
            let pattern = node.pat.span().byte_range().start;
            let arrow = node.fat_arrow_token.span().byte_range().start;
            self.arrows.insert(pattern, arrow);
        }
        fold::fold_arm(self, node)
    }

    fn fold_item_fn(&mut self, node: syn::ItemFn) -> syn::ItemFn {
        self.note_fn(&node.sig, node.block.span());
        fold::fold_item_fn(self, node)
    }

    fn fold_impl_item_fn(&mut self, node: syn::ImplItemFn) -> syn::ImplItemFn {
        self.note_fn(&node.sig, node.block.span());
        fold::fold_impl_item_fn(self, node)
    }
}

/// The start and the end of an expression, in such an order that an outer one comes first.
type Whole = (usize, Reverse<usize>);

/// Collects the changes of a text, then writes them.
#[derive(Debug, Default)]
struct Writer {
    /// Code that is added at a place.
    added: BTreeMap<usize, Vec<(usize, String)>>,
    /// Expressions with what each mutant makes of them.
    replaced: BTreeMap<Whole, Vec<(usize, String)>>,
    switched: Switched,
}

impl Writer {
    /// Adds a mutant. Returns whether it can be switched.
    fn add(&mut self, number: usize, mutant: &Mutant, span: Range<usize>, sites: &Sites, text: &str) -> bool {
        let with = &mutant.replacement;
        let is = format!("crate::__is_mutant({number})");
        let expression = match mutant.genre {
            // The type behind `impl` is that of the body, and a value of another is no mutant.
            Genre::FnValue if mutant.return_type.contains("impl ") => return false,
            Genre::FnValue => {
                let value = format!("if {is} {{ return {with}; }} ");
                self.added.entry(span.start).or_default().push((number, value));
                return true;
            }
            Genre::MatchArm => {
                let Some(arrow) = sites.arrows.get(&span.start) else {
                    return false;
                };
                let guard = format!("if !{is} ");
                self.added.entry(*arrow).or_default().push((number, guard));
                self.switched.arms.push(number);
                return true;
            }
            Genre::MatchArmGuard => Some(span.clone()),
            Genre::BinaryOperator => sites.binary.get(&span.start).cloned(),
            Genre::UnaryOperator => sites.unary.get(&span.start).cloned(),
            Genre::Other => None,
        };
        let Some(whole) = expression else { return false };
        let before = text.get(whole.start..span.start).unwrap_or_default();
        let after = text.get(span.end..whole.end).unwrap_or_default();
        self.replaced
            .entry((whole.start, Reverse(whole.end)))
            .or_default()
            .push((number, format!("{before}{with}{after}")));
        true
    }

    fn write_fragment(&mut self, number: usize, code: &str) {
        let start = self.switched.text.len();
        self.switched.text.push_str(code);
        let end = self.switched.text.len();
        self.switched.fragments.push((start..end, number));
    }

    /// Writes this part of the source, with the changes inside it.
    fn write(&mut self, source: &str, part: Range<usize>) {
        let mut at = part.start;
        while let Some(next) = self.next_change(at, part.end) {
            self.switched
                .text
                .push_str(source.get(at..next).unwrap_or_default());
            at = next;
            for (number, code) in self.added.remove(&at).unwrap_or_default() {
                self.write_fragment(number, &code);
            }
            let first = self.replaced.range((at, Reverse(usize::MAX))..).next();
            let Some((&key, _)) = first.filter(|((start, _), _)| *start == at) else {
                continue;
            };
            self.switched.text.push('(');
            for (number, code) in self.replaced.remove(&key).unwrap_or_default() {
                let code = format!("if crate::__is_mutant({number}) {{ {code} }}");
                self.write_fragment(number, &code);
                self.switched.text.push_str(" else ");
            }
            self.switched.text.push_str("{ ");
            self.write(source, at..key.1.0);
            self.switched.text.push_str(" })");
            at = key.1.0;
        }
        self.switched
            .text
            .push_str(source.get(at..part.end).unwrap_or_default());
    }

    fn next_change(&self, from: usize, to: usize) -> Option<usize> {
        let added = self.added.range(from..to).next().map(|(at, _)| *at);
        let replaced = self
            .replaced
            .range((from, Reverse(usize::MAX))..)
            .map(|((at, _), _)| *at)
            .next()
            .filter(|at| *at < to);
        added.into_iter().chain(replaced).min()
    }
}

/// Returns the mutants to leave out because of one error of the compiler: those whose code it is
/// about, or else all that may have caused it.
pub fn blamed(files: &BTreeMap<String, Switched>, error: &Value) -> Vec<usize> {
    let code = error["code"]["code"].as_str().unwrap_or_default();
    let mut spans: Vec<&Value> = error["spans"].as_array().into_iter().flatten().collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let located = spans.iter().filter_map(|span| {
        let file = files.get(span["file_name"].as_str()?)?;
        let start = usize::try_from(span["byte_start"].as_u64()?).ok()?;
        let end = usize::try_from(span["byte_end"].as_u64()?).ok()?;
        Some((file, start..end))
    });
    let located: Vec<(&Switched, Range<usize>)> = located.collect();
    for (file, span) in &located {
        // An error about a long expression is not about each mutant in it.
        let is_about = |fragment: &Range<usize>| {
            (fragment.start <= span.start && span.end <= fragment.end)
                || (span.len() < 200 && span.start < fragment.end && fragment.start < span.end)
        };
        let fragments = file.fragments.iter();
        let found: Vec<usize> = fragments
            .filter(|(fragment, _)| is_about(fragment))
            .map(|(_, number)| *number)
            .collect();
        if !found.is_empty() {
            return found;
        }
    }
    let suspected: Vec<usize> = match code {
        // A match that lacks an arm.
        "E0004" => located.iter().flat_map(|(file, _)| file.arms.clone()).collect(),
        // A function that is no constant any more, where a constant is wanted.
        "E0015" => {
            let text = error["message"].as_str().unwrap_or_default();
            let unconst = files.values().flat_map(|file| &file.unconst);
            unconst
                .filter(|(name, _)| text.contains(name.as_str()))
                .map(|(_, number)| *number)
                .collect()
        }
        _ => Vec::new(),
    };
    if !suspected.is_empty() {
        return suspected;
    }
    let all = |file: &Switched| -> Vec<usize> { file.fragments.iter().map(|(_, number)| *number).collect() };
    match located.first() {
        Some((file, _)) => all(file),
        None => files.values().flat_map(all).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the mutant that replaces the `nth` occurrence of `what`.
    fn mutant(text: &str, genre: &str, what: &str, nth: usize, replacement: &str) -> Mutant {
        let (at, _) = text.match_indices(what).nth(nth).expect("it is there");
        let place = |at: usize| {
            let before = &text[..at];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().expect("a line").chars().count() + 1;
            json!({"line": line, "column": column})
        };
        let entry = json!({
            "name": format!("{genre} {what}"),
            "file": "a.rs",
            "genre": genre,
            "replacement": replacement,
            "function": {"return_type": "-> bool"},
            "span": {"start": place(at), "end": place(at + what.len())},
        });
        Mutant::read(&entry).expect("a mutant")
    }

    fn switch(text: &str, mutants: &[Mutant]) -> Switched {
        let numbered: Vec<(usize, &Mutant)> = mutants.iter().enumerate().collect();
        switched(text, &numbered).expect("Rust")
    }

    /// Returns the text without the name of the switch.
    fn short(switched: &Switched) -> String {
        switched.text.replace("crate::__is_mutant", "is")
    }

    #[test]
    fn mutant_alone_replaces_its_span() {
        let text = "fn f() -> bool {\n    \"é\"; g() && h()\n}";
        let and = mutant(text, "BinaryOperator", "&&", 0, "||");
        assert_eq!(mutated(text, &and).expect("a place"), text.replace("&&", "||"));
        assert!(mutated("", &and).is_err());
    }

    #[test]
    fn value_is_returned_before_the_body() {
        let text = "fn f() -> bool {\n    \"é\"; g() && h()\n}";
        let value = mutant(text, "FnValue", "\"é\"; g() && h()", 0, "true");
        let and = mutant(text, "BinaryOperator", "&&", 0, "||");
        let done = switch(text, &[value, and]);
        assert_eq!(
            short(&done),
            "fn f() -> bool {\n    if is(0) { return true; } \"é\"; (if is(1) { g() || h() } else { g() && h() })\n}"
        );
    }

    #[test]
    fn operators_of_one_expression_share_a_switch_and_inner_ones_have_their_own() {
        let text = "fn f() -> bool { a + b == c && (d < !e) }";
        let done = switch(
            text,
            &[
                mutant(text, "BinaryOperator", "+", 0, "*"),
                mutant(text, "BinaryOperator", "&&", 0, "||"),
                mutant(text, "BinaryOperator", "<", 0, ">"),
                mutant(text, "UnaryOperator", "!", 0, ""),
            ],
        );
        assert_eq!(
            short(&done),
            "fn f() -> bool { (if is(0) { a * b == c && (d < !e) } else if is(1) { a + b == c || (d < !e) } \
             else { a + b == c && ((if is(2) { d > !e } else { d < (if is(3) { e } else { !e }) })) }) }"
        );
    }

    #[test]
    fn assignment_is_apart_from_what_it_assigns() {
        let text = "fn f() { x += a - b; }";
        let done = switch(
            text,
            &[
                mutant(text, "BinaryOperator", "+=", 0, "-="),
                mutant(text, "BinaryOperator", " - ", 0, " + "),
            ],
        );
        assert_eq!(done.left_out, [1], "the span of an operator has no spaces");
        let done = switch(
            text,
            &[
                mutant(text, "BinaryOperator", "+=", 0, "-="),
                mutant(text, "BinaryOperator", "-", 0, "+"),
            ],
        );
        assert_eq!(
            short(&done),
            "fn f() { (if is(0) { x -= a - b } else { x += (if is(1) { a + b } else { a - b }) }); }"
        );
    }

    #[test]
    fn arm_is_deleted_by_a_guard_and_a_guard_is_replaced() {
        let text = "fn f() { match x { A => 1, B if c() => 2, _ => 3 } }";
        let done = switch(
            text,
            &[
                mutant(text, "MatchArm", "A => 1,", 0, ""),
                mutant(text, "MatchArmGuard", "c()", 0, "true"),
                mutant(text, "MatchArm", "B if", 0, ""),
            ],
        );
        assert_eq!(
            short(&done),
            "fn f() { match x { A if !is(0) => 1, B if (if is(1) { true } else { c() }) => 2, _ => 3 } }"
        );
        assert_eq!(done.left_out, [2]);
    }

    #[test]
    fn chain_with_let_has_switches_beside_the_let_only() {
        let text = "fn f() { if let Some(a) = b && c == d {} }";
        let done = switch(
            text,
            &[
                mutant(text, "BinaryOperator", "&&", 0, "||"),
                mutant(text, "BinaryOperator", "==", 0, "!="),
            ],
        );
        assert_eq!(done.left_out, [0]);
        assert_eq!(
            short(&done),
            "fn f() { if let Some(a) = b && (if is(1) { c != d } else { c == d }) {} }"
        );
    }

    #[test]
    fn function_with_a_mutant_is_no_constant() {
        let text = "const fn f() -> bool { a }\nconst fn g() -> bool { b }";
        let done = switch(text, &[mutant(text, "FnValue", "b }", 0, "true")]);
        assert_eq!(
            short(&done),
            "const fn f() -> bool { a }\n      fn g() -> bool { if is(0) { return true; } b }"
        );
        let files = BTreeMap::from([("a.rs".to_owned(), done)]);
        let error =
            json!({"code": {"code": "E0015"}, "message": "cannot call non-const function `g`", "spans": []});
        assert_eq!(blamed(&files, &error), [0]);
    }

    #[test]
    fn error_blames_the_mutant_whose_code_it_is_about() {
        let text = "fn f() -> bool { a && b }\nfn g() -> bool { match x { A => c, _ => d } }";
        let done = switch(
            text,
            &[
                mutant(text, "BinaryOperator", "&&", 0, "||"),
                mutant(text, "FnValue", "match", 0, "true"),
                mutant(text, "MatchArm", "A => c", 0, ""),
            ],
        );
        let span = |what: &str| {
            let start = done.text.find(what).expect("it is there");
            json!({"file_name": "a.rs", "byte_start": start, "byte_end": start + what.len(), "is_primary": true})
        };
        let [or, value, matched] = [span("a || b"), span("true"), span("x {")];
        let elsewhere = json!({"file_name": "b.rs", "byte_start": 0, "byte_end": 1, "is_primary": true});
        let files = BTreeMap::from([("a.rs".to_owned(), done)]);
        let error =
            |code: &str, span: &Value| json!({"code": {"code": code}, "message": "", "spans": [span]});
        assert_eq!(blamed(&files, &error("E0308", &or)), [0]);
        assert_eq!(blamed(&files, &error("E0308", &value)), [1]);
        assert_eq!(blamed(&files, &error("E0004", &matched)), [2]);
        assert_eq!(blamed(&files, &error("E0308", &matched)), [0, 1, 2]);
        assert_eq!(blamed(&files, &error("E0308", &elsewhere)), [0, 1, 2]);
    }
}
