// What the terminal on stdout can show.
#ifndef EPLB_CLIENT_CLI_TERMINAL_H_
#define EPLB_CLIENT_CLI_TERMINAL_H_

#include <string>
#include <string_view>

namespace eplb::cli {

struct Terminal {
  int width = 80;        // columns, 60..200
  bool colour = false;   // a terminal, and the user did not ask for none
  bool unicode = false;  // block characters can be shown
};

// Width: COLUMNS, else the terminal's, else 80. Colour: only on a terminal, not with NO_COLOR or
// TERM=dumb. Unicode: from LC_ALL, LC_CTYPE, LANG, in this order.
Terminal DetectTerminal();

enum class Colour { kNone, kBold, kDim, kGreen, kYellow, kRed, kCyan };

// `text` in a colour where the terminal shows colours, else as it is.
std::string Paint(const Terminal& terminal, Colour colour, std::string_view text);

// Columns that a text takes: code points, colour sequences not counted.
int DisplayWidth(std::string_view text);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_TERMINAL_H_
