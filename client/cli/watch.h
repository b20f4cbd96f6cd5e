// --watch: a command that is run again and again, its output on a fresh screen.
#ifndef EPLB_CLIENT_CLI_WATCH_H_
#define EPLB_CLIENT_CLI_WATCH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

#include "client/cli/flags.h"

namespace eplb::cli {

// The terminal as a screen that frames are drawn on: for `top` and --watch.

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

struct WatchOptions {
  bool watch = false;
  std::string interval = "2s";  // between two runs, at least 100ms
  int64_t count = 0;            // of runs; 0: until interrupted
  bool lines = false;           // as Output::lines
};

// Gives the command --watch, and with it --interval and --count; `command` becomes `once`, watched
// as they say.
void AddWatched(CLI::App& app, Command& command, Command once);
// Likewise a command that watches unless it writes into a pipe: --interval and --count. Into a pipe
// it runs once, unless one of them is given.
void AddLive(CLI::App& app, Command& command, Command once);

// `once` as it is without options.watch. Else wrong usage for an interval that cannot be meant, or
// what it gives asks to be run again: after a first run that failed no more, later a failure is
// shown and the next run may succeed.
Command Watched(const WatchOptions& options, Command once);

// Runs `command` and prints what it gives, as often as it asks for; the exit code. On a terminal
// several runs are frames of one screen: q or Ctrl-C ends them and gives the terminal back, with
// the last frame on it; a run that fails leaves the frame before it and says above it why and how
// old that is.
int RunAndPrint(const Command& command);

// Writes to stdout and stderr; the exit code, kError when stdout cannot be written.
int Print(const Output& output);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_WATCH_H_
