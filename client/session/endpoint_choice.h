// Which of several daemons a rank speaks to. Without I/O and clock.
#ifndef EPLB_CLIENT_SESSION_ENDPOINT_CHOICE_H_
#define EPLB_CLIENT_SESSION_ENDPOINT_CHOICE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eplb {

// Threads: not safe.
class EndpointChoice {
 public:
  using Clock = std::chrono::steady_clock;
  // A daemon that has answered is tried for so long before another one is: it may be restarting,
  // and ranks at two daemons are balanced by neither.
  static constexpr std::chrono::seconds kStay{5};

  // endpoints: at least one, the first choice first. grace: for how long one that has never
  // answered is tried, e.g. while it starts.
  EndpointChoice(std::vector<std::string> endpoints, Clock::duration grace)
      : endpoints_(std::move(endpoints)), grace_(grace) {}

  const std::string& current() const { return endpoints_[current_]; }
  size_t position() const { return current_; }
  const std::vector<std::string>& endpoints() const { return endpoints_; }

  void OnAnswer() {
    answered_ = true;
    failing_since_.reset();
    avoided_.erase(current());
  }
  // The current one did not answer, or its stream broke. True when it is the next one's turn.
  bool OnFailure(Clock::time_point now) {
    NoteMoveInVain(now);
    if (!failing_since_.has_value()) failing_since_ = now;
    const Clock::duration stay = answered_ ? Clock::duration(kStay) : grace_;
    if (endpoints_.size() == 1 || now - *failing_since_ < stay) return false;
    Take((current_ + 1) % endpoints_.size());
    return true;
  }
  // The current one refused the rank. One that had welcomed it knows what it says; one that never
  // did may be a stranger to the job, and the next one is asked.
  void OnRefusal(Clock::time_point now) {
    NoteMoveInVain(now);
    if (!answered_) Take((current_ + 1) % endpoints_.size());
  }
  // The daemon at `endpoint`, one of the list, leads this launch.
  void GoTo(const std::string& endpoint) {
    const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
    if (found == endpoints_.end()) return;
    Take(static_cast<size_t>(found - endpoints_.begin()));
    was_sent_ = true;
  }
  // False for a while after a rank was sent there and not welcomed: that daemon leads, and has no
  // place for all ranks.
  bool MayGoTo(const std::string& endpoint, Clock::time_point now) const {
    const auto found = avoided_.find(endpoint);
    return found == avoided_.end() || now >= found->second.until;
  }

 private:
  struct Avoided {
    Clock::time_point until;
    std::chrono::minutes pause{1};  // twice as long each time
  };
  static constexpr std::chrono::minutes kLongestPause{16};

  void Take(size_t position) {
    current_ = position;
    answered_ = false;
    was_sent_ = false;
    failing_since_.reset();
  }
  void NoteMoveInVain(Clock::time_point now) {
    if (!std::exchange(was_sent_, false) || answered_) return;
    const auto [avoided, is_new] = avoided_.try_emplace(current());
    if (!is_new) avoided->second.pause = std::min(2 * avoided->second.pause, kLongestPause);
    avoided->second.until = now + avoided->second.pause;
  }

  std::vector<std::string> endpoints_;
  Clock::duration grace_;
  size_t current_ = 0;
  bool answered_ = false;                   // the current one, since it is the current one
  bool was_sent_ = false;                   // to the current one, by GoTo
  std::map<std::string, Avoided> avoided_;  // by endpoint
  std::optional<Clock::time_point> failing_since_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_ENDPOINT_CHOICE_H_
