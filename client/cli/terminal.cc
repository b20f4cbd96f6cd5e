#include "client/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eplb::cli {
namespace {

constexpr int kMinWidth = 60;
constexpr int kMaxWidth = 200;

const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int DetectWidth() {
  int width = 0;
  if (absl::SimpleAtoi(Environment("COLUMNS"), &width) && width > 0) return width;
  struct winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool DetectUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty())
      return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

const char* Sequence(Colour colour) {
  switch (colour) {
    case Colour::kNone:
      return "";
    case Colour::kBold:
      return "\x1b[1m";
    case Colour::kDim:
      return "\x1b[2m";
    case Colour::kGreen:
      return "\x1b[32m";
    case Colour::kYellow:
      return "\x1b[33m";
    case Colour::kRed:
      return "\x1b[31m";
    case Colour::kCyan:
      return "\x1b[36m";
  }
  return "";
}

}  // namespace

Terminal DetectTerminal() {
  const std::string_view term = Environment("TERM");
  return {.width = std::clamp(DetectWidth(), kMinWidth, kMaxWidth),
          .colour = isatty(STDOUT_FILENO) != 0 && Environment("NO_COLOR")[0] == '\0' &&
                    !term.empty() && term != "dumb",
          .unicode = DetectUnicode()};
}

std::string Paint(const Terminal& terminal, Colour colour, std::string_view text) {
  if (!terminal.colour || colour == Colour::kNone || text.empty()) return std::string(text);
  return absl::StrCat(Sequence(colour), std::string(text), "\x1b[0m");
}

int DisplayWidth(std::string_view text) {
  int width = 0;
  bool in_sequence = false;
  for (const char c : text) {
    if (in_sequence) {
      in_sequence = c != 'm';
    } else if (c == '\x1b') {
      in_sequence = true;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

}  // namespace eplb::cli
