#include "client/cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/time/time.h"

#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr auto kQuiet = std::chrono::seconds(2);
constexpr auto kBetween = std::chrono::milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)),
      total_(total),
      shown_(isatty(STDERR_FILENO) != 0),
      next_(Clock::now() + kQuiet) {}

Progress::~Progress() {
  if (written_) (void)std::fputs(kClearLine, stderr);
}

void Progress::Reached(int64_t done) {
  if (!shown_ || Clock::now() < next_) return;
  next_ = Clock::now() + kBetween;
  written_ = true;
  (void)std::fprintf(stderr, "%seplbctl: %s %s of %s", kClearLine, what_.c_str(),
                     Grouped(done).c_str(), Grouped(total_).c_str());
}

Waiting::Waiting(std::string what) {
  if (isatty(STDERR_FILENO) == 0) return;
  thread_ = std::thread([this, what = std::move(what), start = std::chrono::steady_clock::now()] {
    if (done_.WaitForNotificationWithTimeout(absl::FromChrono(kQuiet))) return;
    do {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      (void)std::fprintf(stderr, "%seplbctl: %s, %s", kClearLine, what.c_str(),
                         Seconds(passed.count()).c_str());
    } while (!done_.WaitForNotificationWithTimeout(absl::FromChrono(kBetween)));
    (void)std::fputs(kClearLine, stderr);
  });
}

Waiting::~Waiting() {
  done_.Notify();
  if (thread_.joinable()) thread_.join();
}

}  // namespace eplb::cli
