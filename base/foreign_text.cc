#include "base/foreign_text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"

namespace eplb {
namespace {

struct Character {
  char32_t code = 0;
  size_t num_bytes = 1;
  bool is_utf8 = true;
};

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Returns the first character of `text`. If its bytes are not UTF-8: the first byte alone.
Character Decode(std::string_view text) {
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};  // by bytes
  constexpr Character kInvalid = {.is_utf8 = false};
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {.code = lead};
  const size_t num_bytes = lead >= 0xF0 ? 4 : (lead >= 0xE0 ? 3 : 2);
  if (lead < 0xC0 || lead > 0xF4 || text.size() < num_bytes) return kInvalid;
  char32_t code = lead & (0x7FU >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    if (!IsContinuation(text[i])) return kInvalid;
    code = (code << 6) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest.at(num_bytes) || code > 0x10FFFF || is_surrogate) return kInvalid;
  return {.code = code, .num_bytes = num_bytes};
}

struct Range {
  char32_t first = 0;
  char32_t last = 0;
};

// Unicode 15: Cc, Zl, Zp, Default_Ignorable_Code_Point, and the marks of interlinear annotation.
constexpr Range kUnprintable[] = {
    {0x0000, 0x001F},    // C0
    {0x007F, 0x009F},    // DEL, C1
    {0x00AD, 0x00AD},    // soft hyphen
    {0x034F, 0x034F},    // combining grapheme joiner
    {0x061C, 0x061C},    // Arabic letter mark
    {0x115F, 0x1160},    // Hangul fillers
    {0x17B4, 0x17B5},    // Khmer inherent vowels
    {0x180B, 0x180F},    // Mongolian selectors
    {0x200B, 0x200F},    // zero width, direction marks
    {0x2028, 0x202E},    // line and paragraph separators, embeddings and overrides of direction
    {0x2060, 0x206F},    // word joiner, isolates of direction
    {0x3164, 0x3164},    // Hangul filler
    {0xFE00, 0xFE0F},    // variation selectors
    {0xFEFF, 0xFEFF},    // byte order mark
    {0xFFA0, 0xFFA0},    // halfwidth Hangul filler
    {0xFFF0, 0xFFFB},    // unassigned ignorable ones, interlinear annotation
    {0x1BCA0, 0x1BCA3},  // shorthand format controls
    {0x1D173, 0x1D17A},  // musical format controls
    {0xE0000, 0xE0FFF},  // tags, variation selectors
};

bool IsPrintable(char32_t code) {
  if (code < 0x7F) return code >= ' ';
  return std::ranges::none_of(kUnprintable,
                              [code](const Range& r) { return code >= r.first && code <= r.last; });
}

bool IsLineEndOrTab(char32_t code) { return code >= '\t' && code <= '\r'; }

std::string JsonEscape(char32_t code) {
  if (code < 0x10000) return absl::StrFormat("\\u%04x", static_cast<uint32_t>(code));
  const auto above = static_cast<uint32_t>(code) - 0x10000;
  return absl::StrFormat("\\u%04x\\u%04x", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Character character = Decode(text);
    if (!character.is_utf8) return false;
    text.remove_prefix(character.num_bytes);
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const Character character = Decode(text);
    if (character.is_utf8 && IsPrintable(character.code)) {
      printable += text.substr(0, character.num_bytes);
    } else {
      printable += character.is_utf8 && IsLineEndOrTab(character.code) ? ' ' : '?';
    }
    text.remove_prefix(character.num_bytes);
  }
  return printable;
}

std::string_view FirstCharacters(std::string_view text, size_t most) {
  constexpr size_t kMostContinuations = 3;
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && most - end < kMostContinuations && IsContinuation(text[end])) --end;
  return text.substr(0, end);
}

std::string Clipped(std::string_view text, size_t most) {
  constexpr std::string_view kMore = "...";
  std::string printable = Printable(text);
  if (printable.size() <= most) return printable;
  printable.resize(FirstCharacters(printable, most - kMore.size()).size());
  return printable += kMore;
}

std::string EscapedJson(std::string_view json) {
  std::string escaped;
  escaped.reserve(json.size());
  while (!json.empty()) {
    const Character character = Decode(json);
    // Below DEL: already escaped in strings, and line ends between them.
    if (character.is_utf8 && (character.code < 0x7F || IsPrintable(character.code))) {
      escaped += json.substr(0, character.num_bytes);
    } else {
      escaped += JsonEscape(character.is_utf8 ? character.code : 0xFFFD);
    }
    json.remove_prefix(character.num_bytes);
  }
  return escaped;
}

}  // namespace eplb
