// An AllGather among threads of one process, and threads that play the ranks of a job.
#ifndef EPLB_TESTS_CLIENT_THREAD_ALL_GATHER_H_
#define EPLB_TESTS_CLIENT_THREAD_ALL_GATHER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "client/rows/control/control_channel.h"

namespace eplb::testing {

// One per rank. Fails with DeadlineExceeded when the others do not come within 30 s.
std::vector<AllGather> MakeThreadAllGathers(int32_t world_size);

// Runs `body` for every rank in a thread of its own and joins them.
void RunRanks(int32_t world_size, const std::function<void(int32_t rank)>& body);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_CLIENT_THREAD_ALL_GATHER_H_
