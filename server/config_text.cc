#include "server/config_text.h"

#include <algorithm>

namespace eplb {
namespace {

// The text behind the string that begins here. `quote`: one or three equal characters.
std::string_view SkipString(std::string_view text, std::string_view quote) {
  const bool escapes = quote.front() == '"';
  size_t at = quote.size();
  while (at < text.size()) {
    if (text.substr(at).starts_with(quote)) return text.substr(at + quote.size());
    if (quote.size() == 1 && text[at] == '\n') return text.substr(at);  // not closed: no TOML
    at += escapes && text[at] == '\\' ? 2 : 1;
  }
  return {};
}

// Walks over what is neither string nor comment. A quote begins a string only where a key or value
// may begin: in 12"x" it is text like any other.
class Walk {
 public:
  bool at_start() const { return !in_run_; }

  void OnString() { BeginRun(); }
  void OnCharacter(char c) {
    if (std::string_view(" \t\r\n,]}").find(c) != std::string_view::npos) {
      in_run_ = false;
      if (c == '\n' || c == ',') last_ = c;
    } else if (!in_run_ && std::string_view("=[{").find(c) != std::string_view::npos) {
      last_ = c;
    } else if (!in_run_) {
      BeginRun();
    } else if (c == '=' && !is_value_) {  // ends a key
      in_run_ = false;
      last_ = c;
    }
  }

 private:
  void BeginRun() {
    in_run_ = true;
    is_value_ = std::string_view("=[,").find(last_) != std::string_view::npos;
  }

  bool in_run_ = false;    // between the first character of a key or value and what ends it
  bool is_value_ = false;  // the run
  char last_ = '\n';       // of the characters that say what comes next
};

}  // namespace

int32_t LineWithStrayLetter(std::string_view text) {
  const std::string_view all = text;
  Walk walk;
  while (!text.empty()) {
    const char first = text.front();
    if (static_cast<unsigned char>(first) > 127) {
      const std::string_view before = all.substr(0, all.size() - text.size());
      return 1 + static_cast<int32_t>(std::count(before.begin(), before.end(), '\n'));
    }
    if (first == '#') {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
    } else if ((first == '"' || first == '\'') && walk.at_start()) {
      const bool lines = text.starts_with("\"\"\"") || text.starts_with("'''");
      text = SkipString(text, text.substr(0, lines ? 3 : 1));
      walk.OnString();
    } else {
      walk.OnCharacter(first);
      text.remove_prefix(1);
    }
  }
  return 0;
}

}  // namespace eplb
