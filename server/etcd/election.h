// Which of several daemons leads: the one whose lease holds the leader key. The key's create
// revision is its term, and the fence of all that it writes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/etcd/client.h"

namespace eplb::etcd {

struct ElectionOptions {
  std::string prefix;                       // begin of all keys, "/eplb/v1"
  absl::Duration lease = absl::Seconds(5);  // whole seconds; longer while etcd is slow
  // Called with the time of the leader's lease when it changes or differs from `lease`.
  std::function<void(absl::Duration lease)> lease_changed = [](absl::Duration) {};
};

inline constexpr int64_t kKnockSeconds = 5;  // longer than kUnreached and a renewal's pause
inline constexpr absl::Duration kUnreached = absl::Seconds(3);

struct Leader {
  std::string address;  // empty: none, or not known
  int64_t term = 0;     // the key's create revision
};

// Values that every write of a leader compares, so that etcd refuses writes of an earlier leader.
struct Fence {
  std::string key;
  int64_t create_revision = 0;
};

// threads: safe, but for TryToLead, AwaitVacancy, Knock and Hold, which are one thread's.
class Election {
 public:
  // client: outlives the election.
  Election(Client* client, ElectionOptions options);
  // Stops renewing, and gives nothing up: see Resign.
  ~Election();
  Election(const Election&) = delete;
  Election& operator=(const Election&) = delete;

  // True when this daemon leads from now on. advertise: where ranks and eplbctl reach it; the key's
  // value. cost: one read while another one leads, else three writes; at most 12 s, so that no
  // daemon begins to lead while a call takes more than about 2 s. errors: those of Client.
  absl::StatusOr<bool> TryToLead(const std::string& advertise);
  // Returns when the leader's key is gone, or after `most`. errors: those of Client, at once.
  absl::Status AwaitVacancy(absl::Duration most);
  // Tells the leader, for kKnockSeconds, that ranks connect to this standby although another daemon
  // leads.
  void Knock(const std::string& advertise);
  // Renews the lease on a thread of its own. lost: called once, on that thread, with the reason in
  // one sentence, when another one may lead. serves_nobody: whether no rank is connected. A leader
  // of which this holds for kUnreached, while ranks come to standbys, gives the lead up: they
  // cannot reach it. REQUIRES: TryToLead gave true.
  void Hold(
      std::function<void(const std::string& why)> lost,
      std::function<bool()> serves_nobody = [] { return false; });
  // Gives the lead up, so that another daemon has it at once. Nothing may be written afterwards.
  // Returns within seconds although etcd does not answer: the lease then ends by itself.
  void Resign();

  // The newest that was seen.
  Leader leader() const;
  const Fence& fence() const { return fence_; }
  // OK while the lease was renewed less than two thirds of its time ago, so that what is decided
  // now arrives while it lasts. errors: Unavailable, with what failed.
  absl::Status MayWrite() const;
  // Until then, of MonotonicNow().
  absl::Time write_until() const;
  const ElectionOptions& options() const { return options_; }

 private:
  absl::StatusOr<bool> Try(const std::string& advertise);
  absl::StatusOr<bool> CreateKey(const std::string& advertise, int64_t lease, absl::Duration time,
                                 absl::Time granted, absl::Time deadline);
  // errors: FailedPrecondition when the lead is lost for certain; those of Client otherwise.
  absl::Status Renew();
  // Returns options.lease, or more where round trips to etcd need it.
  absl::Duration WantedLease() const;
  absl::Duration lease_time() const;
  // Moves the leader's key to a longer lease if round trips need it, and to a shorter one after
  // ten renewals that need less than half.
  void FitLease();
  void MoveTo(absl::Duration time);
  // The leader's key is at this lease for certain.
  void Take(int64_t lease, absl::Duration time);
  void Loop(const std::function<void(const std::string&)>& lost,
            const std::function<bool()>& serves_nobody);
  // Returns true if standbys have knocked lately; false if etcd does not answer.
  bool Knocked();
  // Ends the thread. A call that waits for etcd is cancelled.
  void Stop();
  // Ends the leases that may hold the leader's key.
  void Revoke();
  // Gives the lead up and waits a moment for another daemon to take it.
  void Yield();

  Client* const client_;
  const ElectionOptions options_;
  const std::string knocks_;  // the prefix of their keys
  Fence fence_;
  int64_t lease_ = 0;
  int64_t next_lease_ = 0;     // lease to which the key moves, without an answer yet; 0: no move
  int calm_renewals_ = 0;      // in a row, that need less than half of the lease
  int64_t seen_revision_ = 0;  // revision of the store when the leader's key was read
  mutable std::mutex mutex_;   // guards what follows, but for the thread
  std::condition_variable stop_;
  bool stopping_ = false;
  bool stopped_ = false;  // the thread has ended its work
  Leader leader_;
  absl::Time renewed_ = absl::InfinitePast();            // before the newest renewal was asked for
  absl::Duration lease_time_;                            // after which etcd may end the lease
  absl::Duration next_time_ = absl::InfiniteDuration();  // the same of the next lease, if any
  absl::Status failure_;                                 // failure of the newest attempt or renewal
  std::thread thread_;
};

}  // namespace eplb::etcd
