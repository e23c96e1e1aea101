// Splits a text into words by a tokenizer's pattern. A pattern is a regular expression of the kind
// that byte-level tokenizers use: alternatives, groups, classes with \p{L}, \p{N}, \p{M} and \s,
// quantifiers and look-ahead. The first alternative that matches wins, as in the tokenizers library.
#pragma once

#include <cctype>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json.h"
#include "unicode.h"

using namespace std::string_literals;
using Text = std::u32string;

inline Text code_points(const std::string& bytes, const std::string& name) {
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = [&](size_t i) { return uint32_t(uint8_t(bytes[i])); };
    const uint32_t first = byte(at);
    const size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
    bool valid = (first < 0x80 || first >= 0xC2) && first < 0xF5 && at + size <= bytes.size();
    uint32_t code = size == 1 ? first : first & (0x7F >> size);
    for (size_t i = 1; valid && i < size; ++i) {
      valid = byte(at + i) >> 6 == 2;
      code = code << 6 | (byte(at + i) & 63);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    valid = valid && code >= least[size] && code < 0x110000 && code >> 11 != 0x1B;
    require(valid, name + " is not UTF-8 at byte " + std::to_string(at) + "; allowed: UTF-8");
    out += char32_t(code);
    at += size;
  }
  return out;
}

inline std::string utf8(const Text& text) {
  std::string out;
  for (const char32_t code : text) append_utf8(out, code);
  return out;
}

inline bool in_ranges(const std::vector<uint32_t>& ranges, uint32_t code) {
  size_t low = 0, high = ranges.size() / 2;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[2 * middle + 1] < code) low = middle + 1; else high = middle;
  }
  return 2 * low < ranges.size() && ranges[2 * low] <= code;
}

inline bool is_number(char32_t code) { return in_ranges(k_numbers, code); }
inline bool is_space(char32_t code) { return in_ranges(k_spaces, code); }

class Pattern {
 public:
  explicit Pattern(const std::string& source) : source_(code_points(source, "a pattern")) {
    alternatives_ = parse_alternatives(0);
    require(at_ == source_.size(), fault("an unmatched )"));
  }

  // Returns spans (start, end) of the matches that are not empty, in order.
  std::vector<std::pair<size_t, size_t>> matches(const Text& text) const {
    std::vector<std::pair<size_t, size_t>> out;
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      match_any(alternatives_, text, at, [&](size_t stop) { return end = stop, true; });
      if (end > at) out.emplace_back(at, end);
      at = end > at ? end : at + 1;
    }
    return out;
  }

 private:
  struct Node;
  using Sequence = std::vector<Node>;
  using Then = std::function<bool(size_t)>;

  struct Class {
    bool negated = false;
    std::vector<std::pair<std::vector<uint32_t>, bool>> parts;  // ranges, and whether negated

    void add(uint32_t first, uint32_t last) { parts.push_back({{first, last}, false}); }
    bool has(char32_t code) const {
      bool found = false;
      for (const auto& [ranges, opposite] : parts) found |= in_ranges(ranges, code) != opposite;
      return found != negated;
    }
  };
  struct Node {
    Class one;                           // of a single character, if there are no alternatives
    std::vector<Sequence> alternatives;  // of a group
    enum { Consumes, Ahead, NotAhead } kind = Consumes;
    size_t least = 1, most = 1;
    bool possessive = false;
  };

  Text source_;
  size_t at_ = 0;
  std::vector<Sequence> alternatives_;
  bool any_case_ = false;

  std::string fault(const std::string& what) const {
    return "the tokenizer's pattern has " + what + " at character " + std::to_string(at_) +
           "; allowed: the patterns of byte-level tokenizers";
  }
  bool ends() const { return at_ == source_.size(); }
  bool take(const char* wanted) {
    const Text text = code_points(wanted, "a pattern");
    const bool found = source_.compare(at_, text.size(), text) == 0;
    at_ += found ? text.size() : 0;
    return found;
  }
  char32_t next() {
    require(!ends(), fault("a cut end"));
    return source_[at_++];
  }

  std::vector<Sequence> parse_alternatives(int depth) {
    require(depth < 16, fault("more than 16 groups in each other"));
    std::vector<Sequence> out(1);
    while (!ends() && source_[at_] != ')') {
      if (take("|")) out.emplace_back();
      else out.back().push_back(parse_node(depth));
    }
    return out;
  }
  Node parse_node(int depth) {
    Node node;
    if (take("(")) {
      const bool outer = any_case_;
      if (take("?i:")) any_case_ = true;
      else if (take("?=")) node.kind = Node::Ahead;
      else if (take("?!")) node.kind = Node::NotAhead;
      else take("?:");
      node.alternatives = parse_alternatives(depth + 1);
      require(take(")"), fault("a group without end"));
      any_case_ = outer;
    } else if (take("[")) {
      node.one.negated = take("^");
      while (!take("]")) parse_member(node.one, true);
    } else {
      const char32_t code = source_[at_];
      require(U"^$.*+?{"s.find(code) == Text::npos, fault("an unknown part"));
      parse_member(node.one, false);
    }
    constexpr size_t unlimited = ~size_t(0);
    if (take("*")) node.least = 0, node.most = unlimited;
    else if (take("+")) node.most = unlimited;
    else if (take("?")) node.least = 0;
    else if (take("{")) {
      node.least = number();
      node.most = !take(",") ? node.least : source_[at_] == '}' ? unlimited : number();
      require(take("}") && node.least <= node.most, fault("a wrong quantifier"));
    }
    node.possessive = take("+");
    require(!take("?"), fault("a lazy quantifier"));
    return node;
  }
  size_t number() {
    size_t out = 0, digits = 0;
    for (; !ends() && source_[at_] >= '0' && source_[at_] <= '9' && digits < 4; ++digits)
      out = 10 * out + (source_[at_++] - '0');
    require(digits > 0, fault("a wrong quantifier"));
    return out;
  }
  void parse_member(Class& out, bool in_class) {
    char32_t code = next();
    require(!in_class || (code != '[' && code != '&'), fault("a class in a class"));
    if (code == '\\') {
      code = next();
      const bool opposite = code == 'P' || code == 'S';
      if (code == 'p' || code == 'P') return out.parts.push_back({table(), opposite});
      if (code == 's' || code == 'S') return out.parts.push_back({k_spaces, opposite});
      const size_t control = U"rntfv"s.find(code);
      require(control != Text::npos || code > 127 || !std::isalnum(int(code)), fault("an unknown escape"));
      if (control != Text::npos) code = U"\r\n\t\f\v"[control];
    }
    char32_t last = code;
    if (in_class && at_ + 1 < source_.size() && source_[at_] == '-' && source_[at_ + 1] != ']') {
      ++at_;
      last = next();
      require(last >= code && last != '\\', fault("a wrong range"));
    }
    out.add(code, last);
    if (!any_case_ || code > 127 || !std::isalpha(int(code))) return;
    require(code == last, fault("a range without case"));
    out.add(code ^ 32, code ^ 32);
    if ((code | 32) == 's') out.add(0x17F, 0x17F);   // the long s
    if ((code | 32) == 'k') out.add(0x212A, 0x212A);  // the Kelvin sign
  }
  const std::vector<uint32_t>& table() {
    if (take("{L}")) return k_letters;
    if (take("{N}")) return k_numbers;
    if (take("{M}")) return k_marks;
    throw Error(fault("a class that is not L, N or M"));
  }

  static bool match_any(const std::vector<Sequence>& all, const Text& text, size_t at, const Then& then) {
    for (const Sequence& sequence : all)
      if (match(sequence, 0, text, at, then)) return true;
    return false;
  }
  static bool match(const Sequence& nodes, size_t index, const Text& text, size_t at, const Then& then) {
    if (index == nodes.size()) return then(at);
    const Node& node = nodes[index];
    const Then rest = [&](size_t end) { return match(nodes, index + 1, text, end, then); };
    if (node.kind != Node::Consumes) {
      const bool found = match_any(node.alternatives, text, at, [](size_t) { return true; });
      return found == (node.kind == Node::Ahead) && rest(at);
    }
    if (!node.alternatives.empty()) return repeat(node, 0, text, at, rest);
    size_t count = 0;
    while (count < node.most && at + count < text.size() && node.one.has(text[at + count])) ++count;
    for (; count + 1 > node.least; --count) {
      if (rest(at + count)) return true;
      if (node.possessive || count == 0) return false;
    }
    return false;
  }
  static bool repeat(const Node& node, size_t count, const Text& text, size_t at, const Then& rest) {
    const Then again = [&](size_t end) { return end > at && repeat(node, count + 1, text, end, rest); };
    if (count < node.most && count < 64 && match_any(node.alternatives, text, at, again)) return true;
    return count >= node.least && rest(at);
  }
};
