// The terminal as a screen on which frames are drawn, for `top` and --watch.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace eplb::cli {

struct Window {
  int width = 80;   // columns
  int height = 24;  // lines
};

// Returns the lines of `text` from line `first` on that fit into the window, each cut to its width;
// a last line "... 3 lines above, 12 more lines" counts the others. `problem`, if not empty,
// precedes them in red, on at most three lines. Lines are separated by "\n". Lowers `first` if the
// last lines would leave room.
std::string FitFrame(const std::string& text, const std::string& problem, const Window& window,
                     int& first);

// Takes over the terminal on stdout, and on stdin if that is a terminal, too: the alternate screen,
// no cursor, keys without Enter. The destructor restores the terminal. A process has at most one
// Screen. threads: only the thread that made it. REQUIRES: stdout is a terminal.
class Screen {
 public:
  enum class Event {
    kNothing,   // the time has passed
    kQuit,      // q was pressed
    kEnded,     // SIGINT, SIGTERM or SIGHUP: see RaiseEnd
    kChanged,   // the window has another size, or the process continues after Ctrl-Z
    kSort,      // s was pressed
    kUp,        // a line: arrow, k
    kDown,      // a line: arrow, j
    kPageUp,    // PageUp, b
    kPageDown,  // PageDown, space
    kTop,       // Home, g
    kBottom,    // End, G
  };

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // 80 x 24 if the terminal does not report its size.
  Window window() const;

  // Returns false if stdout cannot be written.
  bool Draw(const std::string& frame);

  // Waits for a key or signal that has a meaning, at most for `timeout`.
  Event Wait(absl::Duration timeout);

  // Restores the terminal, then ends the process by the signal of kEnded.
  [[noreturn]] void RaiseEnd();

  // Restores the terminal before the destructor does.
  void Leave();

 private:
  void Enter();
  Event TakeSignal(int number);
  Event TakeKey();

  bool entered_ = false;
  bool keys_ = false;   // stdin is a terminal
  int end_signal_ = 0;  // the signal of kEnded
  struct Saved;         // the terminal's settings and the signals' former handlers
  const std::unique_ptr<Saved> saved_;
};

}  // namespace eplb::cli
