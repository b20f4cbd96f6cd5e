#include "server/core/memory.h"

#include <algorithm>

namespace eplb::core {

wire::JobMemory MemoryOf(const Job& job) {
  wire::JobMemory memory;
  memory.serial = job.memory_serial;
  memory.launch = job.launch;
  if (job.current) memory.incarnation = job.current->name;
  memory.gone.assign(job.gone.begin(), job.gone.end());
  memory.paused = job.paused;
  memory.pause_reason = job.pause_reason;
  memory.settings = job.patch;
  return memory;
}

void Remember(Turn& turn, Job& job) {
  ++job.memory_serial;
  if (job.known) StoreJob(turn, job);
  if (!job.current) return;
  SendToAll(turn, *job.current, wire::Keep{job.launch, {.value = MemoryOf(job)}});
}

void Recall(State& state, Job& job, const wire::JobMemory& memory) {
  if (memory.serial <= job.memory_serial) return;
  job.memory_serial = memory.serial;
  job.launch = std::max(job.launch, memory.launch);
  job.gone.assign(memory.gone.begin(), memory.gone.end());
  job.paused = memory.paused;
  job.pause_reason = memory.pause_reason;
  job.patch = memory.settings;
  job.settings = SettingsOf(state.config, job.name, job.patch);
}

}  // namespace eplb::core
