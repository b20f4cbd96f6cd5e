// A communicator of the fake: a thread of its own connects the ranks and moves the bytes of one
// group after the other.
#ifndef EPLB_TESTS_SUPPORT_FAKE_NCCL_COMMUNICATOR_H_
#define EPLB_TESTS_SUPPORT_FAKE_NCCL_COMMUNICATOR_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl/faults.h"
#include "tests/support/fake_nccl/link.h"
#include "tests/support/fake_nccl/mesh.h"
#include "tests/support/fake_nccl/plans.h"

namespace eplb::fake_nccl {

struct CommunicatorOptions {
  MeshAddress address;
  int32_t channels = 32;
  std::vector<Fault> faults;
  bool rules = true;  // at most one send and one receive in a group
};

// Threads: all methods from any thread; Submit from one.
class Communicator {
 public:
  explicit Communicator(CommunicatorOptions options);
  // Ends the thread: nothing is read or written afterwards.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // ncclInProgress, or why the group is refused.
  Outcome Submit(std::vector<Operation> operations);
  // ncclInProgress until the ranks are connected, and until the bytes of the last group have moved.
  Outcome state() const;
  const MeshAddress& address() const { return options_.address; }

 private:
  void Run();
  void SetState(Outcome outcome);
  // The next group; absent at the end.
  std::optional<std::vector<Operation>> NextGroup();
  Outcome RunGroup(const std::vector<Operation>& operations);
  // What comes in place of the group, absent when it runs; *corrupt when it runs with a wrong bit.
  std::optional<Outcome> MeetFaults(bool* corrupt);
  Outcome RunPlan(const std::vector<Operation>& operations, const std::vector<size_t>& plan);
  // Until something can be done, or the end.
  void Wait(int timeout_ms, std::vector<Link*>* links);
  bool stopped() const;

  const CommunicatorOptions options_;
  Descriptor stop_reader_;
  Descriptor stop_writer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outcome state_{ncclInProgress, ""};                // guarded by mutex_
  bool stop_ = false;                                // guarded by mutex_
  std::optional<std::vector<Operation>> submitted_;  // guarded by mutex_
  int64_t num_groups_ = 0;                           // the thread's
  std::vector<std::unique_ptr<Link>> links_;         // the thread's; null for the own rank
  std::thread thread_;
};

}  // namespace eplb::fake_nccl

#endif  // EPLB_TESTS_SUPPORT_FAKE_NCCL_COMMUNICATOR_H_
