// The terminal as a screen that frames are drawn on: for `top` and --watch.
#ifndef EPLB_CLIENT_CLI_SCREEN_H_
#define EPLB_CLIENT_CLI_SCREEN_H_

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace eplb::cli {

struct Window {
  int width = 80;   // columns
  int height = 24;  // lines
};

// `text` as one frame: no line is wider than the window and no more lines than fit, the first ones;
// a last line "... 12 more lines" tells what is missing. `problem`, where there is one, stands
// above the text in red and at most three lines. Lines end in "\n", but for the last.
std::string FitFrame(const std::string& text, const std::string& problem, const Window& window);

// Takes over the terminal on stdout, and on stdin where that is a terminal, too: the alternate
// screen, no cursor, keys without Enter. The destructor gives the terminal back as it was. One at a
// time. threads: that which made it. REQUIRES: stdout is a terminal.
class Screen {
 public:
  enum class Event {
    kNothing,  // the time has passed
    kQuit,     // q was pressed
    kEnded,    // SIGINT, SIGTERM or SIGHUP: see RaiseEnd
    kChanged,  // the window has another size, or the process goes on after Ctrl-Z
  };

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Where the terminal does not say its size, 80 x 24.
  Window window() const;

  // False when stdout cannot be written.
  bool Draw(const std::string& frame);

  // The next key or signal that means something, at the latest after `timeout`.
  Event Wait(absl::Duration timeout);

  // Gives the terminal back, then ends the process by the signal of kEnded, as if it had not been
  // caught. Does not return.
  [[noreturn]] void RaiseEnd();

  // Gives the terminal back before the destructor does.
  void Leave();

 private:
  void Enter();
  Event TakeSignal(int number);
  Event TakeKey();

  bool entered_ = false;
  bool keys_ = false;   // stdin is a terminal
  int end_signal_ = 0;  // of kEnded
  struct Saved;         // the terminal's settings and the signals' former handlers
  const std::unique_ptr<Saved> saved_;
};

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_SCREEN_H_
