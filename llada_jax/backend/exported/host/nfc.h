// Unicode's normalization form C (UAX 15), by the tables of the contract.
#pragma once

#include <algorithm>
#include <set>
#include <unordered_map>

#include "words.h"

class Nfc {
 public:
  explicit Nfc(const Json& tables) {
    const auto list = tables["excluded"].integers(0, 0x10FFFF);
    const std::set<int> excluded(list.begin(), list.end());
    const auto parts = tables["decompositions"].integers(0, 0x10FFFF);  // a character and its two parts, or one and 0
    require(parts.size() % 3 == 0, "the contract has decompositions of another form");
    for (size_t i = 0; i < parts.size(); i += 3) {
      decompositions_[char32_t(parts[i])] = {char32_t(parts[i + 1]), char32_t(parts[i + 2])};
      if (!excluded.count(parts[i]))
        compositions_[key(char32_t(parts[i + 1]), char32_t(parts[i + 2]))] = char32_t(parts[i]);
    }
    const auto classes = tables["classes"].integers(0, 0x10FFFF);  // a character and its combining class
    for (size_t i = 0; i + 1 < classes.size(); i += 2) classes_[char32_t(classes[i])] = classes[i + 1];
  }

  Text apply(const Text& text) const {
    Text parts;
    for (const char32_t code : text) decompose(code, parts);
    for (size_t start = 0; start < parts.size();) {  // marks in the order of their classes
      size_t end = start + 1;
      while (end < parts.size() && combining(parts[end]) > 0) ++end;
      const size_t first = start + (combining(parts[start]) == 0);
      std::stable_sort(parts.begin() + long(first), parts.begin() + long(end),
                       [&](char32_t a, char32_t b) { return combining(a) < combining(b); });
      start = end;
    }
    Text out;
    size_t starter = Text::npos;
    int last = 0;  // class of the last character that was kept after the starter
    for (const char32_t code : parts) {
      const int own = combining(code);
      const bool reachable = starter != Text::npos && (last < own || starter + 1 == out.size());
      const char32_t both = reachable ? compose(out[starter], code) : 0;
      if (both) {
        out[starter] = both;
        continue;
      }
      if (own == 0) starter = out.size();
      last = own;
      out += code;
    }
    return out;
  }

 private:
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> decompositions_;
  std::unordered_map<uint64_t, char32_t> compositions_;
  std::unordered_map<char32_t, int> classes_;

  static uint64_t key(char32_t first, char32_t second) { return uint64_t(first) << 32 | second; }
  int combining(char32_t code) const {
    const auto found = classes_.find(code);
    return found == classes_.end() ? 0 : found->second;
  }
  void decompose(char32_t code, Text& out) const {
    if (code >= 0xAC00 && code < 0xAC00 + 11172) {  // Korean syllables follow a formula
      const char32_t index = code - 0xAC00;
      out += {char32_t(0x1100 + index / 588), char32_t(0x1161 + index % 588 / 28)};
      if (index % 28) out += char32_t(0x11A7 + index % 28);
      return;
    }
    const auto found = decompositions_.find(code);
    if (found == decompositions_.end() || found->second.first == code) {
      out += code;
      return;
    }
    decompose(found->second.first, out);
    if (found->second.second) decompose(found->second.second, out);
  }
  char32_t compose(char32_t first, char32_t second) const {
    if (first >= 0x1100 && first < 0x1113 && second >= 0x1161 && second < 0x1176)
      return 0xAC00 + ((first - 0x1100) * 21 + second - 0x1161) * 28;
    const bool is_pair = first >= 0xAC00 && first < 0xAC00 + 11172 && (first - 0xAC00) % 28 == 0;
    if (is_pair && second > 0x11A7 && second < 0x11C3) return first + second - 0x11A7;
    const auto found = compositions_.find(key(first, second));
    return found == compositions_.end() ? 0 : found->second;
  }
};
