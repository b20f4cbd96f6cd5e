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

// Whether a quote behind this begins a string: in 12"x" it does not, and what follows it is looked
// at like any other text.
bool MayPrecedeString(char c) {
  return std::string_view(" \t\r\n=[{,.").find(c) != std::string_view::npos;
}

}  // namespace

int32_t LineWithStrayLetter(std::string_view text) {
  const std::string_view all = text;
  char previous = '\n';
  while (!text.empty()) {
    const char first = text.front();
    if (static_cast<unsigned char>(first) > 127) {
      const std::string_view before = all.substr(0, all.size() - text.size());
      return 1 + static_cast<int32_t>(std::count(before.begin(), before.end(), '\n'));
    }
    if (first == '#') {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
    } else if ((first == '"' || first == '\'') && MayPrecedeString(previous)) {
      const bool lines = text.starts_with("\"\"\"") || text.starts_with("'''");
      text = SkipString(text, text.substr(0, lines ? 3 : 1));
    } else {
      text.remove_prefix(1);
    }
    previous = all[all.size() - text.size() - 1];
  }
  return 0;
}

}  // namespace eplb
