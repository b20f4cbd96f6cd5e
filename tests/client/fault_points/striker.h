// Brings the fault to its point, on the rank that is its victim: in the channels around the client
// and in its memory.
#pragma once

#include <cstdint>
#include <memory>

#include "client/rows/control/control_channel.h"
#include "client/rows/transport.h"
#include "tests/client/fault_points/fault.h"
#include "tests/client/fault_points/guarded_memory.h"
#include "tests/client/fault_points/journal.h"

namespace eplb {

// One of a process at a time, as its memory.
class Striker {
 public:
  Striker(const Fault& fault, bool is_victim, Journal& journal, GuardedMemory& memory);
  ~Striker();
  Striker(const Striker&) = delete;
  Striker& operator=(const Striker&) = delete;

  // This rank is at a point of the migration of `post_id`.
  void At(Point point, uint64_t post_id, int32_t nth = 0);
  // All ranks will commit `post_id`.
  void OpenForCommit(uint64_t post_id);
  // The rows of `post_id` are staged or given up on this rank.
  void RowsAreOver(uint64_t post_id) { journal_.posts_over = post_id; }
  // Corrupts a row as soon as it is in staging, if that is the fault.
  void AfterPost(uint64_t post_id, std::span<std::byte> first_row);
  bool waits_for(Point point, uint64_t post_id) const;
  const Fault& fault() const { return fault_; }

 private:
  static void StrikeNow();

  const Fault fault_;
  const bool is_victim_;
  Journal& journal_;
  GuardedMemory& memory_;
};

// They number migrations as the client does, from 1.
std::unique_ptr<Transport> MakeStrikingTransport(std::unique_ptr<Transport> inner,
                                                 Striker& striker);
std::unique_ptr<ControlChannel> MakeStrikingControl(std::unique_ptr<ControlChannel> inner,
                                                    Striker& striker);

}  // namespace eplb
