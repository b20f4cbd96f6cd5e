#include "server/http/event_streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "server/http/job_json.h"
#include "server/http/outlet.h"

namespace eplb {
namespace {

constexpr int32_t kEventsAtOnce = 500;  // of a peer that has missed many
constexpr size_t kFewWaiting = 16;      // a part of max_waiting_bytes
constexpr absl::Duration kIdleWait = absl::Minutes(1);
constexpr char kRetry[] = "retry: 2000\n\n";
// With a name: a comment would not tell a browser's script that the stream lives.
constexpr char kAlive[] = "event: alive\ndata: {}\n\n";

// `data` is one line of JSON, and JSON has no line end inside of a text. id: 0: none.
std::string MessageOf(int64_t id, std::string_view event, std::string data) {
  while (!data.empty() && data.back() == '\n') data.pop_back();
  std::string message;
  if (id != 0) absl::StrAppend(&message, "id: ", id, "\n");
  absl::StrAppend(&message, "event: ", std::string(event), "\ndata: ", data, "\n\n");
  return message;
}

}  // namespace

EventStreams::EventStreams(EventStreamSources sources, Limits limits)
    : sources_(std::move(sources)),
      limits_(limits),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool EventStreams::Take(Descriptor& peer, const std::string& head, std::optional<int64_t> after) {
  const absl::Time now = MonotonicNow();
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || full()) return false;
    // A peer whose machine vanished acknowledges nothing: it must not stay for 15 minutes.
    const auto patience = static_cast<unsigned int>(absl::ToInt64Milliseconds(limits_.stall));
    (void)setsockopt(peer.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
    (void)setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
    ++num_watchers_;
    posted_.push_back({.peer = std::move(peer),
                       .waiting = absl::StrCat(head, kRetry),
                       .after = after,
                       .moved = now,
                       .told = now});
  }
  Wake();
  return true;
}

// A new peer is given its head once it has begun: what happens after the head arrives, it is told.
void EventStreams::Run() {
  absl::Time look = MonotonicNow();
  for (bool is_new = false; TakePosted(is_new);) {
    const absl::Time now = MonotonicNow();
    if (is_new || (now >= look && !watchers_.empty())) {
      Gather(now);
      look = MonotonicNow() + limits_.period;
    }
    SendToAll(now);
    Wait(watchers_.empty() ? now + kIdleWait : look);
  }
}

void EventStreams::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  Wake();
}

void EventStreams::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

bool EventStreams::TakePosted(bool& is_new) {
  const std::lock_guard lock(mutex_);
  is_new = !posted_.empty();
  watchers_.splice(watchers_.end(), posted_);
  return !stopped_;
}

// Finds the peer's position in this store. Returns false while the store does not answer.
bool EventStreams::Begin(Watcher& watcher, Reading& reading) {
  if (!std::exchange(reading.newest_asked, true)) {
    const absl::StatusOr<std::vector<StoredEvent>> newest = sources_.events(std::nullopt, 1);
    if (newest.ok()) reading.newest = newest->empty() ? 0 : newest->back().sequence;
  }
  if (!reading.newest) return false;
  if (!watcher.after) {
    watcher.after = reading.newest;
  } else if (*watcher.after > *reading.newest) {
    watcher.after = 0;
  }
  watcher.begun = true;
  return true;
}

void EventStreams::GatherEvents(Watcher& watcher, Reading& reading) {
  if (!watcher.begun && !Begin(watcher, reading)) return;
  if (watcher.waiting.size() > limits_.max_waiting_bytes / kFewWaiting) return;
  const int64_t after = *watcher.after;
  auto found = reading.after.find(after);
  if (found == reading.after.end()) {
    absl::StatusOr<std::vector<StoredEvent>> events = sources_.events(after, kEventsAtOnce);
    if (!events.ok()) return;
    found = reading.after.emplace(after, *std::move(events)).first;
  }
  for (const StoredEvent& event : found->second) {
    if (watcher.waiting.size() > limits_.max_waiting_bytes / 2)
      return;  // the rest stays in the store
    watcher.after = event.sequence;
    watcher.waiting += MessageOf(event.sequence, "event", EventToJson(event));
  }
}

void EventStreams::GatherJobs() {
  std::string all;
  std::string changed;
  std::vector<std::string> names;
  std::map<std::string, JobNews> jobs;
  for (const core::JobView& job : sources_.jobs()) {
    JobNews news{.state = std::string(core::JobStateName(job.state)),
                 .step = job.step,
                 .version = job.version,
                 .window = job.last_window_last_step,
                 .connected = job.connected_ranks};
    const std::string message = MessageOf(0, "job", JobNewsToJson(job));
    all += message;
    const auto old = known_.find(job.job);
    if (old == known_.end() || old->second != news) changed += message;
    names.push_back(job.job);
    jobs.emplace(job.job, std::move(news));
  }
  for (const auto& [name, news] : known_) {
    if (!jobs.contains(name)) changed += MessageOf(0, "job_gone", JobGoneToJson(name));
  }
  known_ = std::move(jobs);
  all = absl::StrCat(MessageOf(0, "jobs", JobNamesToJson(names)), all);
  all_jobs_bytes_ = all.size();
  for (Watcher& watcher : watchers_) {
    watcher.waiting += watcher.knows_jobs ? changed : all;
    watcher.knows_jobs = true;
  }
}

void EventStreams::Gather(absl::Time now) {
  GatherJobs();
  Reading reading;
  for (Watcher& watcher : watchers_) {
    GatherEvents(watcher, reading);
    if (watcher.waiting.empty() && now - watcher.told >= limits_.alive) watcher.waiting = kAlive;
    if (!watcher.waiting.empty()) watcher.told = now;
  }
}

bool EventStreams::SendWaiting(Watcher& watcher, absl::Time now) {
  size_t sent = 0;
  while (sent < watcher.waiting.size()) {
    const ssize_t taken = send(watcher.peer.get(), watcher.waiting.data() + sent,
                               watcher.waiting.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken > 0) {
      sent += static_cast<size_t>(taken);
    } else if (taken < 0 && errno == EINTR) {
      continue;
    } else {
      if (taken < 0 && errno != EAGAIN) {
        watcher.slow = errno == ETIMEDOUT;
        return false;
      }
      break;
    }
  }
  watcher.waiting.erase(0, sent);
  if (sent > 0 || watcher.waiting.empty()) watcher.moved = now;
  return true;
}

bool EventStreams::Listen(Watcher& watcher) const {
  std::array<char, 4096> ignored;
  const ssize_t got = recv(watcher.peer.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got > 0) watcher.heard += static_cast<size_t>(got);
  watcher.slow = got < 0 && errno == ETIMEDOUT;
  const bool is_there = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  return is_there && watcher.heard <= limits_.max_heard_bytes;
}

void EventStreams::SendToAll(absl::Time now) {
  const size_t most = limits_.max_waiting_bytes + all_jobs_bytes_;
  for (auto one = watchers_.begin(); one != watchers_.end();) {
    const bool over = !SendWaiting(*one, now);
    if (!over) one->slow = one->waiting.size() > most || now - one->moved >= limits_.stall;
    one = over || one->slow ? Drop(one) : std::next(one);
  }
}

std::list<EventStreams::Watcher>::iterator EventStreams::Drop(std::list<Watcher>::iterator one) {
  if (one->slow) ++dropped_;
  --num_watchers_;
  return watchers_.erase(one);
}

void EventStreams::Wait(absl::Time until) {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Watcher& watcher : watchers_) {
    const int events = watcher.waiting.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back(
        {.fd = watcher.peer.get(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  const int64_t left = absl::ToInt64Milliseconds(until - MonotonicNow()) + 1;
  (void)poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  if (polled[0].revents != 0) {
    uint64_t ignored = 0;
    (void)!read(wake_.get(), &ignored, sizeof(ignored));
  }
  auto one = watchers_.begin();
  for (size_t i = 1; i < polled.size(); ++i) {
    const bool there = (polled[i].revents & ~POLLOUT) == 0 || Listen(*one);
    one = there ? std::next(one) : Drop(one);
  }
}

}  // namespace eplb
