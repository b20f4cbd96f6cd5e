// A real etcd of one member, for the tests of one binary.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "server/etcd/client.h"
#include "tests/server/store/folder.h"

namespace eplb::etcd {

// Ends with the process or with this object.
class EtcdProcess {
 public:
  // Null when this machine has no /usr/bin/etcd. Answers when it returns; stops the test program
  // when it does not within 30 s.
  static std::unique_ptr<EtcdProcess> Start();
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  int port() const { return port_; }
  std::unique_ptr<Client> NewClient(absl::Duration timeout = absl::Seconds(5)) const;
  // SIGSTOP and SIGCONT.
  void Freeze() const;
  void Thaw() const;

 private:
  EtcdProcess() = default;

  Folder folder_;
  int port_ = 0;
  std::string endpoint_;
  pid_t process_ = -1;
};

// Returns the etcd of all tests of this binary; null without /usr/bin/etcd.
EtcdProcess* SharedEtcd();
// A prefix that no other test has.
std::string NewPrefix();

#define EPLB_SKIP_WITHOUT_ETCD()                                                 \
  if (::eplb::etcd::SharedEtcd() == nullptr) {                                   \
    GTEST_SKIP() << "/usr/bin/etcd is missing: install the package etcd-server"; \
  }

}  // namespace eplb::etcd
