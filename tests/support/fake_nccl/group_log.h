// Log of the calls of the fake, one line each, for tests:
//   rank=0 begin ranks=2 maxCTAs=16 nChannelsPerNetPeer=8 trafficClass=- name=eplb version=22809
//   rank=0 group=3 plans=1 send=1:4096 receive=2:4096          (peer:bytes)
//   rank=0 refused two sends in a group
//   rank=0 registered
//   rank=0 aborted
#pragma once

#include <cstdint>
#include <string>

namespace eplb::fake_nccl {

// threads: safe. Also appended to rank-<rank>.log in the folder EPLB_FAKE_NCCL_LOG, when it is set.
void AddToLog(int32_t rank, const std::string& line);
std::string LogOfProcess();  // lines with their ends
void ClearLog();

}  // namespace eplb::fake_nccl
