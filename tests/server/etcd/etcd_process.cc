#include "tests/server/etcd/etcd_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"

namespace eplb::etcd {
namespace {

constexpr char kEtcd[] = "/usr/bin/etcd";

// Below the ports that the kernel gives to clients, so that no connection of another test takes it.
int FreePort() {
  static std::mt19937 random{std::random_device()()};
  for (;;) {
    const int port = std::uniform_int_distribution<int>(20000, 32000)(random);
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free =
        bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    (void)close(probe);
    if (free) return port;
  }
}

[[noreturn]] void Exec(const std::vector<std::string>& words, const std::string& log) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  (void)dup2(out, STDOUT_FILENO);
  (void)dup2(out, STDERR_FILENO);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  (void)execv(kEtcd, arguments.data());
  std::_Exit(127);
}

}  // namespace

std::unique_ptr<EtcdProcess> EtcdProcess::Start() {
  if (access(kEtcd, X_OK) != 0) return nullptr;
  auto etcd = std::unique_ptr<EtcdProcess>(new EtcdProcess());
  etcd->port_ = FreePort();
  etcd->endpoint_ = absl::StrCat("127.0.0.1:", etcd->port_);
  const std::string client = absl::StrCat("http://", etcd->endpoint_);
  const std::string peer = absl::StrCat("http://127.0.0.1:", FreePort());
  const std::string log = etcd->folder_.File("etcd.log");
  const std::vector<std::string> words = {kEtcd,
                                          "--name=one",
                                          "--data-dir=" + etcd->folder_.File("data"),
                                          "--listen-client-urls=" + client,
                                          "--advertise-client-urls=" + client,
                                          "--listen-peer-urls=" + peer,
                                          "--initial-advertise-peer-urls=" + peer,
                                          "--initial-cluster=one=" + peer};
  etcd->process_ = fork();
  if (etcd->process_ == 0) Exec(words, log);
  const std::unique_ptr<Client> probe = etcd->NewClient(absl::Seconds(1));
  pb::RangeRequest request;
  request.set_key("any");
  for (const absl::Time deadline = MonotonicNow() + absl::Seconds(30);;) {
    if (probe->Range(request, deadline).ok()) return etcd;
    if (MonotonicNow() > deadline) std::abort();
    absl::SleepFor(absl::Milliseconds(50));
  }
}

EtcdProcess::~EtcdProcess() {
  (void)kill(process_, SIGKILL);
  (void)waitpid(process_, nullptr, 0);
}

std::unique_ptr<Client> EtcdProcess::NewClient(absl::Duration timeout) const {
  return *Client::Make({.endpoints = {endpoint_}, .timeout = timeout});
}

// Returns when it stands still: a signal takes its time on a busy machine.
void EtcdProcess::Freeze() const {
  if (kill(process_, SIGSTOP) == 0) (void)waitpid(process_, nullptr, WUNTRACED);
}
void EtcdProcess::Thaw() const { (void)kill(process_, SIGCONT); }

EtcdProcess* SharedEtcd() {
  static const std::unique_ptr<EtcdProcess> etcd = EtcdProcess::Start();
  return etcd.get();
}

std::string NewPrefix() {
  static std::atomic<int> count{0};
  return absl::StrCat("/test/", getpid(), "/", count++);
}

}  // namespace eplb::etcd
