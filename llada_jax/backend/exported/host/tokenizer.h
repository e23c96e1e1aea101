// A byte-level BPE tokenizer from tokenizer.json, and chats by the contract's prefixes.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <unordered_map>

#include "nfc.h"

class Tokenizer {
 public:
  // `contract` has the ids of control tokens, and the tables of a normalizer.
  Tokenizer(const Json& file, const Json& contract) {
    for (const int id : contract["control_ids"].integers()) control_.insert(id);
    const Json& model = file["model"];
    require(!model.has("type") || model["type"].text() == "BPE",
            "the tokenizer's model is " + (model.has("type") ? model["type"].text() : "") +
                "; allowed: BPE");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      require(!model.has(name) || model[name].text().empty(), std::string("the tokenizer has ") +
                                                                  name + "; allowed: none");
    if (file.has("normalizer")) {
      require(file["normalizer"]["type"].text() == "NFC" && contract.has("nfc"),
              "the tokenizer's normalizer is " + file["normalizer"]["type"].text() + "; allowed: NFC");
      nfc_ = std::make_shared<Nfc>(contract["nfc"]);
    }
    for (const auto& [token, id] : model["vocab"].object()) add(token, int(id.integer(0, k_most_ids)));
    ignore_merges_ = model.has("ignore_merges") && model["ignore_merges"].flag();
    fuse_unknown_ = model.has("fuse_unk") && model["fuse_unk"].flag();
    if (model.has("unk_token")) unknown_ = id_of(model["unk_token"].text());
    read_merges(model["merges"]);
    for (const Json& token : file["added_tokens"].list()) {
      const int id = int(token["id"].integer(0, k_most_ids));
      const std::string& content = token["content"].text();
      require(!content.empty() && !flag(token, "single_word"),
              "an added token is empty or single_word; allowed: others");
      add(content, id);
      added_.push_back({code_points(content, "a token"), id, flag(token, "lstrip"), flag(token, "rstrip")});
      is_added_[id] = flag(token, "special");
    }
    read_splits(file["pre_tokenizer"]);
    require(is_byte_level_, "the tokenizer is not byte-level; allowed: a pre_tokenizer with ByteLevel");
    for (int byte = 0, other = 256; byte < 256; ++byte) {
      const bool printed = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
      letters_[size_t(byte)] = char32_t(printed ? byte : other++);
      bytes_[letters_[size_t(byte)]] = char(byte);
    }
  }

  // Returns the ids of a text, in which the spelling of an added token is that token. Control
  // tokens that touch one of the `plain` spans are ordinary text.
  std::vector<int> encode(const Text& text, const std::vector<std::pair<size_t, size_t>>& plain = {}) const {
    std::vector<int> ids;
    size_t at = 0;
    for (const Found& found : find_added(text, true)) {
      const bool is_plain = std::any_of(plain.begin(), plain.end(), [&](const auto& span) {
        return found.start < span.second && found.end > span.first;
      });
      if (!is_plain || !control_.count(found.id)) continue;
      encode_piece(text.substr(at, found.start - at), true, ids);
      encode_piece(text.substr(found.start, found.end - found.start), false, ids);
      at = found.end;
    }
    encode_piece(text.substr(at), true, ids);
    return ids;
  }

  std::string decode(const std::vector<int>& ids) const {
    std::string out;
    for (const int id : ids) {
      const auto added = is_added_.find(id);
      const auto token = tokens_.find(id);
      if (token == tokens_.end() || (added != is_added_.end() && added->second)) continue;
      for (const char32_t letter : code_points(token->second, "a token")) {
        const auto byte = bytes_.find(letter);
        if (byte != bytes_.end() && added == is_added_.end()) out += byte->second;
        else append_utf8(out, letter);
      }
    }
    return out;
  }

 private:
  static constexpr int k_most_ids = 1 << 24;
  struct Added {
    Text content;
    int id;
    bool lstrip, rstrip;
  };
  struct Found {
    size_t start, end;
    int id;
  };
  struct Split {
    std::shared_ptr<Pattern> pattern;  // none: digits are split from other characters,
    bool each = false;                 // and from each other
  };

  std::unordered_map<std::string, int> ids_;
  std::unordered_map<int, std::string> tokens_;
  std::unordered_map<uint64_t, std::pair<int, int>> merges_;  // of two ids: rank, and id of both
  std::unordered_map<int, bool> is_added_;                    // and whether special
  std::set<int> control_;
  std::vector<Added> added_;
  std::vector<Split> splits_;
  std::array<char32_t, 256> letters_;
  std::unordered_map<char32_t, char> bytes_;
  std::shared_ptr<Nfc> nfc_;
  bool is_byte_level_ = false, ignore_merges_ = false, fuse_unknown_ = false;
  int unknown_ = -1;

  static bool flag(const Json& token, const char* name) { return token.has(name) && token[name].flag(); }
  void add(const std::string& token, int id) { ids_[token] = id, tokens_[id] = token; }
  int id_of(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  static uint64_t key(int left, int right) { return uint64_t(left) << 32 | uint32_t(right); }

  void read_merges(const Json& merges) {
    int rank = 0;
    for (const Json& merge : merges.list()) {
      std::string left, right;
      if (merge.is_text()) {
        const size_t space = merge.text().find(' ');
        require(space != std::string::npos, "a merge of the tokenizer has one part; allowed: two");
        left = merge.text().substr(0, space), right = merge.text().substr(space + 1);
      } else {
        require(merge.list().size() == 2, "a merge of the tokenizer is no pair; allowed: two parts");
        left = merge.list()[0].text(), right = merge.list()[1].text();
      }
      const int a = id_of(left), b = id_of(right), both = id_of(left + right);
      require(a >= 0 && b >= 0 && both >= 0, "a merge of the tokenizer has no token; allowed: tokens");
      merges_.emplace(key(a, b), std::make_pair(rank++, both));
    }
  }
  void read_splits(const Json& part) {
    const std::string& type = part["type"].text();
    if (type == "Sequence") {
      for (const Json& inner : part["pretokenizers"].list()) read_splits(inner);
    } else if (type == "Digits") {
      splits_.push_back({nullptr, flag(part, "individual_digits")});
    } else if (type == "Split") {
      const bool isolated = part["behavior"].text() == "Isolated" && !flag(part, "invert");
      require(isolated && part["pattern"].has("Regex"),
              "the tokenizer's Split is of another kind; allowed: Isolated, by a Regex");
      splits_.push_back({std::make_shared<Pattern>(part["pattern"]["Regex"].text())});
    } else {
      require(type == "ByteLevel", "the tokenizer's pre_tokenizer is " + type +
                                       "; allowed: Sequence, Split, Digits, ByteLevel");
      if (!part.has("use_regex") || part["use_regex"].flag())
        splits_.push_back({std::make_shared<Pattern>(
            R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")});
      is_byte_level_ = true;
      require(!flag(part, "add_prefix_space"),
              "the tokenizer adds a space before words; allowed: add_prefix_space false");
    }
  }

  // Finds the longest added token at the leftmost position, again and again.
  std::vector<Found> find_added(const Text& text, bool with_control) const {
    std::vector<Found> out;
    size_t start = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      const Added* best = nullptr;
      for (const Added& token : added_)
        if ((with_control || !control_.count(token.id)) &&
            (!best || token.content.size() > best->content.size()) &&
            text.compare(at, token.content.size(), token.content) == 0)
          best = &token;
      if (!best) continue;
      Found found{at, at + best->content.size(), best->id};
      while (best->lstrip && found.start > start && is_space(text[found.start - 1])) --found.start;
      while (best->rstrip && found.end < text.size() && is_space(text[found.end])) ++found.end;
      out.push_back(found);
      start = found.end;
      at = found.end - 1;
    }
    return out;
  }

  void encode_piece(const Text& text, bool with_control, std::vector<int>& ids) const {
    size_t at = 0;
    for (const Found& found : find_added(text, with_control)) {
      encode_words(text.substr(at, found.start - at), ids);
      ids.push_back(found.id);
      at = found.end;
    }
    encode_words(text.substr(at), ids);
  }
  void encode_words(const Text& text, std::vector<int>& ids) const {
    std::vector<Text> words{nfc_ ? nfc_->apply(text) : text};
    for (const Split& split : splits_) {
      std::vector<Text> parts;
      for (const Text& word : words) {
        size_t at = 0;
        for (const auto& [start, end] : split.pattern ? split.pattern->matches(word) : digits(word, split.each)) {
          if (start > at) parts.push_back(word.substr(at, start - at));
          parts.push_back(word.substr(start, end - start));
          at = end;
        }
        if (at < word.size()) parts.push_back(word.substr(at));
      }
      words = parts;
    }
    for (const Text& word : words) encode_word(utf8(word), ids);
  }
  static std::vector<std::pair<size_t, size_t>> digits(const Text& word, bool each) {
    std::vector<std::pair<size_t, size_t>> out;
    for (size_t at = 0; at < word.size(); ++at) {
      if (!is_number(word[at])) continue;
      if (!each && !out.empty() && out.back().second == at) ++out.back().second;
      else out.emplace_back(at, at + 1);
    }
    return out;
  }

  void encode_word(const std::string& word, std::vector<int>& ids) const {
    Text spelled;
    for (const char byte : word) spelled += letters_[uint8_t(byte)];
    if (ignore_merges_) {
      const int whole = id_of(utf8(spelled));
      if (whole >= 0) return ids.push_back(whole);
    }
    std::vector<int> parts;
    bool after_unknown = false;
    for (const char32_t letter : spelled) {
      const int id = id_of(utf8({letter}));
      const bool is_unknown = id < 0;
      if (!is_unknown) parts.push_back(id);
      else if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) parts.push_back(unknown_);
      after_unknown = is_unknown;
    }
    while (true) {  // merge the pair of the lowest rank, the leftmost one first
      int best = std::numeric_limits<int>::max(), both = -1;
      size_t where = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = merges_.find(key(parts[i], parts[i + 1]));
        if (found != merges_.end() && found->second.first < best)
          best = found->second.first, both = found->second.second, where = i;
      }
      if (both < 0) break;
      parts[where] = both;
      parts.erase(parts.begin() + long(where) + 1);
    }
    ids.insert(ids.end(), parts.begin(), parts.end());
  }
};

struct Message {
  std::string role, content;
};

// Returns the ids of a chat, in which only the contract's prefixes and suffixes are control tokens.
inline std::vector<int> encode_chat(const Tokenizer& tokenizer, const Json& chat,
                                    const std::vector<Message>& messages) {
  const auto fixed = [](const Json& text) { return code_points(text.text(), "the contract"); };
  Text text = messages[0].role == "system" ? Text() : fixed(chat["begin"]);
  std::vector<std::pair<size_t, size_t>> plain;
  for (const Message& message : messages) {
    require(chat["roles"].has(message.role), "the chat template takes no role " + message.role);
    const Json& role = chat["roles"][message.role];
    Text content = code_points(message.content, "a message");
    if (chat["trim"].flag()) {
      while (!content.empty() && is_space(content.back())) content.pop_back();
      while (!content.empty() && is_space(content.front())) content.erase(0, 1);
    }
    text += fixed(role["prefix"]);
    plain.emplace_back(text.size(), text.size() + content.size());
    text += content + fixed(role["suffix"]);
  }
  return tokenizer.encode(text + fixed(chat["answer"]), plain);
}
