// Reads JSON, and defines the program's only exception. Every message is one line.
#pragma once

#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const std::string& message) {
  if (!holds) throw Error(message);
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file.peek() != EOF) content << file.rdbuf();
  require(file.is_open() && !file.bad(), path + " cannot be read; allowed: a file");
  return content.str();
}

inline void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += char(code);
  } else if (code < 0x800) {
    text += {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
  } else if (code < 0x10000) {
    text += {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
  } else {
    text += {char(0xF0 | code >> 18), char(0x80 | (code >> 12 & 63)),
             char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
  }
}

// A JSON value. Accessors raise Error for a value of another kind, so that a damaged file never
// leads to undefined behaviour.
class Json {
 public:
  enum Kind { Null, Bool, Number, Text, List, Object };

  bool is_text() const { return kind_ == Text; }
  bool flag() const { return need(Bool, "true or false"), number_ != 0; }
  const std::string& text() const { return need(Text, "text"), text_; }
  const std::vector<Json>& list() const { return need(List, "a list"), list_; }
  const std::map<std::string, Json>& object() const { return need(Object, "an object"), object_; }
  double number() const { return need(Number, "a number"), number_; }

  // A whole number in a range; sizes of arrays depend on it.
  int64_t integer(int64_t least = 0, int64_t most = int64_t(1) << 40) const {
    const double value = number();
    require(value >= double(least) && value <= double(most) && value == std::floor(value),
            "JSON has a number outside its range; allowed: " + std::to_string(least) + " to " +
                std::to_string(most));
    return int64_t(value);
  }
  std::vector<int> integers(int least = 0, int most = 1 << 24) const {
    std::vector<int> out;
    for (const Json& item : list()) out.push_back(int(item.integer(least, most)));
    return out;
  }
  const Json& operator[](const std::string& key) const {
    const auto found = object().find(key);
    require(found != object_.end(), "JSON has no " + key);
    return found->second;
  }
  bool has(const std::string& key) const {
    const auto found = object().find(key);
    return found != object_.end() && found->second.kind_ != Null;
  }

  static Json parse(const std::string& text) {
    Parser parser{text};
    Json value = parser.value(0);
    parser.skip_space();
    require(parser.at == text.size(), parser.fault("text after the value"));
    return value;
  }
  static Json read(const std::string& path) {
    try {
      return parse(read_file(path));
    } catch (const Error& error) {
      throw Error(path + ": " + error.what());
    }
  }

 private:
  Kind kind_ = Null;
  double number_ = 0;
  std::string text_;
  std::vector<Json> list_;
  std::map<std::string, Json> object_;

  void need(Kind kind, const char* allowed) const {
    require(kind_ == kind, std::string("JSON has another value; allowed: ") + allowed);
  }

  struct Parser {
    const std::string& source;
    size_t at = 0;

    std::string fault(const std::string& what) const {
      return "JSON has " + what + " at byte " + std::to_string(at);
    }
    void skip_space() {
      while (at < source.size() && std::string(" \t\r\n").find(source[at]) != std::string::npos) ++at;
    }
    bool take(char wanted) {
      skip_space();
      const bool found = at < source.size() && source[at] == wanted;
      at += found;
      return found;
    }
    void expect(char wanted) {
      require(take(wanted), fault(std::string("no ") + wanted));
    }
    Json value(int depth) {
      require(depth < 64, fault("more than 64 levels"));
      Json out;
      if (take('{')) {
        out.kind_ = Object;
        for (bool more = !take('}'); more; more = !take('}')) {
          if (!out.object_.empty()) expect(',');
          skip_space();
          std::string key = string();
          expect(':');
          out.object_[key] = value(depth + 1);
        }
      } else if (take('[')) {
        out.kind_ = List;
        for (bool more = !take(']'); more; more = !take(']')) {
          if (!out.list_.empty()) expect(',');
          out.list_.push_back(value(depth + 1));
        }
      } else if (skip_space(), at < source.size() && source[at] == '"') {
        out.kind_ = Text;
        out.text_ = string();
      } else if (word("null")) {
      } else if (word("true")) {
        out.kind_ = Bool, out.number_ = 1;
      } else if (word("false")) {
        out.kind_ = Bool;
      } else {
        out.kind_ = Number;
        const char* begin = source.c_str() + at;
        char* end = nullptr;
        out.number_ = std::strtod(begin, &end);
        require(end != begin && std::isfinite(out.number_), fault("no value"));
        at += size_t(end - begin);
      }
      return out;
    }
    bool word(const std::string& word) {
      const bool found = source.compare(at, word.size(), word) == 0;
      at += found ? word.size() : 0;
      return found;
    }
    uint32_t hex4() {
      require(at + 4 <= source.size(), fault("a cut escape"));
      uint32_t code = 0;
      for (int i = 0; i < 4; ++i) {
        const char* digits = "0123456789abcdef";
        const size_t digit = std::string(digits).find(char(std::tolower(source[at++])));
        require(digit != std::string::npos, fault("a wrong escape"));
        code = code << 4 | uint32_t(digit);
      }
      return code;
    }
    std::string string() {
      require(at < source.size() && source[at] == '"', fault("no text"));
      std::string out;
      for (++at; at < source.size() && source[at] != '"';) {
        if (source[at] != '\\') {
          out += source[at++];
          continue;
        }
        require(++at < source.size(), fault("a cut escape"));
        const char kind = source[at++];
        const size_t simple = std::string("\"\\/bfnrt").find(kind);
        if (kind != 'u') {
          require(simple != std::string::npos, fault("a wrong escape"));
          out += "\"\\/\b\f\n\r\t"[simple];
          continue;
        }
        uint32_t code = hex4();
        if (code >> 10 == 0x36 && source.compare(at, 2, "\\u") == 0) {
          at += 2;
          code = 0x10000 + ((code & 0x3FF) << 10) + (hex4() & 0x3FF);
        }
        append_utf8(out, code);
      }
      require(at < source.size(), fault("a text without end"));
      ++at;
      return out;
    }
  };
};
