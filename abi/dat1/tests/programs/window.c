/* dat_rmr_bind as its manual page declares it: seven arguments, through libdat.so.1. */
#include "dat1.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TYPE(code) ((code) & 0x3fff0000)
#define INVALID_HANDLE 0x50000
#define INVALID_PARAMETER 0x60000
#define INVALID_STATE 0x70000
#define PROVIDER_NOT_FOUND 0xa0000
#define PRIVILEGES_VIOLATION 0xb0000
#define LONG 120000000 /* 120 s: only a hang takes that long */
#define LOCAL 0x11
#define R 0x02
#define W 0x20

static void check(int ok, const char *what, int line) {
  if (ok) return;
  printf("line %d: %s\n", line, what);
  exit(1);
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call) CHECK((call) == 0)
#define FAILS(type, call) CHECK(TYPE(call) == (type))

struct side {
  DAT_HANDLE ia, pz, async, recv, request, connect, cr, ep;
};
static struct side owner, peer;
static char memory[4096], buffer[4096];

static void open_side(struct side *s) {
  OK(dat_ia_openv("rkey-lo", 8, &s->async, &s->ia, 1, 2, 0));
  OK(dat_pz_create(s->ia, &s->pz));
  OK(dat_evd_create(s->ia, 64, NULL, 0x20, &s->recv));
  OK(dat_evd_create(s->ia, 64, NULL, 0xa0, &s->request));
  OK(dat_evd_create(s->ia, 16, NULL, 0x40, &s->connect));
  OK(dat_evd_create(s->ia, 16, NULL, 0x10, &s->cr));
  DAT_EP_ATTR attr = {.max_message_size = 1 << 20, .max_rdma_size = 1 << 20, .max_recv_dtos = 16, .max_request_dtos = 16, .max_recv_iov = 2, .max_request_iov = 2, .max_rdma_read_in = 4, .max_rdma_read_out = 4, .max_rdma_read_iov = 2, .max_rdma_write_iov = 2};
  OK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, &s->ep));
}

static DAT_EVENT event(DAT_HANDLE evd, int number) {
  DAT_EVENT event;
  int more;
  OK(dat_evd_wait(evd, LONG, 1, &event, &more));
  if (event.event_number != number) printf("event %#x instead of %#x\n", event.event_number, number);
  CHECK(event.event_number == number);
  return event;
}

static void connect_both(void) {
  uint64_t qual;
  DAT_HANDLE psp;
  DAT_IA_ATTR attr;
  OK(dat_ia_query(owner.ia, NULL, 0x40, &attr, 0, NULL));
  CHECK(attr.ia_address_ptr && attr.max_rmrs > 0);
  OK(dat_psp_create_any(owner.ia, &qual, owner.cr, 0, &psp));
  char hello[48] = "hello";
  OK(dat_ep_connect(peer.ep, attr.ia_address_ptr, qual, LONG, sizeof hello, hello, 0, 0));
  DAT_EVENT request = event(owner.cr, 0x2001);
  CHECK(request.event_data.arrival.sp_handle == psp && request.event_data.arrival.conn_qual == qual);
  OK(dat_cr_accept(request.event_data.arrival.cr_handle, owner.ep, 0, NULL));
  event(owner.connect, 0x4001);
  CHECK(event(peer.connect, 0x4001).event_data.connection.ep_handle == peer.ep);
  OK(dat_psp_free(psp));
}

static uint32_t remember(struct side *s, void *at, int privileges, DAT_HANDLE *lmr) {
  uint32_t local, remote;
  uint64_t len, address;
  DAT_REGION_DESCRIPTION region = {.for_va = at};
  OK(dat_lmr_create(s->ia, 0, region, 4096, s->pz, privileges, lmr, &local, &remote, &len, &address));
  CHECK(len >= 4096 && address <= (uint64_t)(uintptr_t)at);
  return local;
}

static DAT_CONTEXT cookie(uint64_t number) { return (DAT_CONTEXT){.as_64 = number}; }

static int rdma(int write, uint32_t local, uint32_t context, const char *at) {
  DAT_LMR_TRIPLET iov = {local, 0, (uint64_t)(uintptr_t)buffer, 64};
  DAT_RMR_TRIPLET to = {context, 0, (uint64_t)(uintptr_t)at, 64};
  OK((write ? dat_ep_post_rdma_write : dat_ep_post_rdma_read)(peer.ep, 1, &iov, cookie(9), &to, 0));
  DAT_EVENT done = event(peer.request, 1);
  CHECK(done.event_data.dto.ep_handle == peer.ep && done.event_data.dto.user_cookie.as_64 == 9);
  if (done.event_data.dto.status == 0 && write) CHECK(done.event_data.dto.transfered_length == 64);
  return done.event_data.dto.status;
}

static void texts(void) {
  const char *major, *minor;
  OK(dat_strerror(0x8fff0000, &major, &minor));
  CHECK(strcmp(major, "DAT_NOT_IMPLEMENTED") == 0 && strcmp(minor, "DAT_NO_SUBTYPE") == 0);
  OK(dat_strerror(0x80060024, &major, &minor));
  CHECK(strcmp(major, "DAT_INVALID_PARAMETER") == 0 && strcmp(minor, "DAT_INVALID_ARG1") == 0);
  CHECK(dat_strerror(0x8fee0000, &major, &minor) != 0);
}

int main(int argc, char **argv) {
  /* The loader found the library by a path that is relative to the old directory. */
  if (argc > 1) CHECK(chdir(argv[1]) == 0);
  static DAT_PROVIDER_INFO infos[64], *list[64];
  for (int i = 0; i < 64; i++) list[i] = &infos[i];
  int count = 0;
  OK(dat_registry_list_providers(64, &count, list));
  CHECK(count >= 1 && strncmp(infos[0].ia_name, "rkey-", 5) == 0 && infos[0].dapl_version_major == 1);
  DAT_HANDLE none = NULL;
  FAILS(PROVIDER_NOT_FOUND, dat_ia_openv("rkey-none", 8, &none, &none, 1, 2, 0));
  FAILS(PROVIDER_NOT_FOUND, dat_ia_openv("rkey-lo", 8, &none, &none, 2, 0, 0));
  texts();

  open_side(&owner);
  open_side(&peer);
  connect_both();
  DAT_HANDLE lmr, other, rmr;
  uint32_t local = remember(&owner, memory, LOCAL, &lmr), from = remember(&peer, buffer, LOCAL, &other);
  memset(buffer, 0x5a, sizeof buffer);
  OK(dat_rmr_create(owner.pz, &rmr));

  /* Seven arguments, and a triplet of 24 bytes whose length has 64 bits. */
  uint32_t context = 0, old;
  DAT_LMR_TRIPLET part = {local, 0xdead, (uint64_t)(uintptr_t)memory + 128, 64};
  OK(dat_rmr_bind(rmr, &part, R | W, owner.ep, cookie(0x123456789abcdef0), 0, &context));
  DAT_EVENT bound = event(owner.request, 0x1001);
  CHECK(bound.event_data.bind.rmr_handle == rmr && bound.event_data.bind.status == 0);
  CHECK(bound.event_data.bind.user_cookie.as_64 == 0x123456789abcdef0);
  CHECK(rdma(1, from, context, memory + 128) == 0 && memory[128] == 0x5a && memory[191] == 0x5a && memory[192] == 0);
  CHECK(rdma(0, from, context, memory + 128) == 0);

  DAT_RMR_PARAM rmr_param;
  OK(dat_rmr_query(rmr, 0x1f, &rmr_param));
  CHECK(rmr_param.ia_handle == owner.ia && rmr_param.pz_handle == owner.pz && rmr_param.rmr_context == context);
  CHECK(rmr_param.lmr_triplet.virtual_address == part.virtual_address && rmr_param.lmr_triplet.segment_length == 64);
  CHECK(rmr_param.mem_priv == (R | W));
  FAILS(INVALID_PARAMETER, dat_rmr_query(rmr, 0x20, &rmr_param));
  DAT_LMR_PARAM lmr_param;
  OK(dat_lmr_query(lmr, 0x3ff, &lmr_param));
  CHECK(lmr_param.lmr_context == local && lmr_param.length == 4096 && lmr_param.pz_handle == owner.pz && lmr_param.mem_priv == LOCAL);
  DAT_EP_PARAM ep_param;
  OK(dat_ep_query(owner.ep, 0x7ffff7ff, &ep_param));
  CHECK(ep_param.ep_state == 9 && ep_param.pz_handle == owner.pz && ep_param.connect_evd_handle == owner.connect);
  CHECK(ep_param.ep_attr.max_message_size == 1 << 20 && ep_param.ep_attr.max_request_dtos >= 16);
  FAILS(INVALID_PARAMETER, dat_ep_query(owner.ep, 0x800, &ep_param));

  /* Errors. */
  FAILS(INVALID_STATE, dat_lmr_free(lmr));
  FAILS(INVALID_PARAMETER, dat_rmr_bind(rmr, NULL, R, owner.ep, cookie(1), 0, &context));
  DAT_LMR_TRIPLET bad = part;
  bad.lmr_context ^= 0x5555;
  FAILS(INVALID_PARAMETER, dat_rmr_bind(rmr, &bad, R, owner.ep, cookie(1), 0, &context));
  bad = part;
  bad.segment_length = (1ull << 32) + 64;
  CHECK((dat_rmr_bind(rmr, &bad, R, owner.ep, cookie(1), 0, &context) & 0x3fffffff) == (INVALID_PARAMETER | 37));
  bad.segment_length = 4000;
  CHECK((dat_rmr_bind(rmr, &bad, R, owner.ep, cookie(1), 0, &context) & 0x3fffffff) == (INVALID_PARAMETER | 37));
  CHECK((dat_rmr_bind(rmr, &part, R, owner.ep, cookie(1), 0x7000, &context) & 0x3fffffff) == (INVALID_PARAMETER | 41));
  FAILS(INVALID_HANDLE, dat_rmr_bind(NULL, &part, R, owner.ep, cookie(1), 0, &context));
  FAILS(INVALID_HANDLE, dat_rmr_bind(owner.ep, &part, R, owner.ep, cookie(1), 0, &context));
  FAILS(INVALID_HANDLE, dat_rmr_bind(rmr, &part, R, rmr, cookie(1), 0, &context));
  FAILS(INVALID_HANDLE, dat_ep_free((DAT_HANDLE)7));
  DAT_HANDLE readable, fresh;
  static char more_memory[4096];
  uint32_t only_read = remember(&owner, more_memory, 0x01, &readable);
  DAT_LMR_TRIPLET of_readable = {only_read, 0, (uint64_t)(uintptr_t)more_memory, 64};
  FAILS(PRIVILEGES_VIOLATION, dat_rmr_bind(rmr, &of_readable, W, owner.ep, cookie(1), 0, &context));
  OK(dat_ep_create(owner.ia, owner.pz, owner.recv, owner.request, owner.connect, NULL, &fresh));
  FAILS(INVALID_STATE, dat_rmr_bind(rmr, &part, R, fresh, cookie(1), 0, &context));

  int more;
  DAT_EVENT unread;
  FAILS(INVALID_PARAMETER, dat_evd_wait(owner.recv, 0, 1, NULL, &more));
  FAILS(INVALID_PARAMETER, dat_evd_dequeue(owner.recv, NULL));
  FAILS(0xf0000, dat_evd_wait(owner.recv, 1000, 1, &unread, &more));
  FAILS(INVALID_PARAMETER, dat_evd_post_se(owner.recv, NULL));
  FAILS(INVALID_PARAMETER, dat_ep_query(owner.ep, 0x1, NULL));
  FAILS(INVALID_PARAMETER, dat_rmr_query(rmr, 0x1, NULL));
  FAILS(INVALID_PARAMETER, dat_lmr_query(lmr, 0x1, NULL));
  FAILS(INVALID_PARAMETER, dat_ep_post_send(owner.ep, 1, NULL, cookie(1), 0));
  FAILS(INVALID_PARAMETER, dat_ep_post_send(owner.ep, -1, &bad, cookie(1), 0));
  FAILS(INVALID_PARAMETER, dat_ep_post_recv(owner.ep, 0x7fffffff, &bad, cookie(1), 0));
  FAILS(INVALID_PARAMETER, dat_ep_post_rdma_read(peer.ep, 1, &part, cookie(1), NULL, 0));
  FAILS(INVALID_PARAMETER, dat_lmr_create(owner.ia, 0, (DAT_REGION_DESCRIPTION){.for_va = memory}, 64, owner.pz, LOCAL, NULL, NULL, NULL, NULL, NULL));
  FAILS(0x80000, dat_lmr_create(owner.ia, 0, (DAT_REGION_DESCRIPTION){.for_va = memory}, 0, owner.pz, LOCAL, &none, NULL, NULL, NULL, NULL));
  FAILS(INVALID_PARAMETER, dat_ia_query(owner.ia, NULL, 0x1, NULL, 0, NULL));
  FAILS(INVALID_HANDLE, dat_ia_query(rmr, NULL, 0, NULL, 0, NULL));
  FAILS(INVALID_PARAMETER, dat_ia_openv(NULL, 8, &none, &none, 1, 2, 0));

  /* Rebind, unbind. */
  old = context;
  OK(dat_rmr_bind(rmr, &part, W, owner.ep, cookie(2), 1, &context));
  DAT_LMR_TRIPLET send = {local, 0, (uint64_t)(uintptr_t)memory, 64}, recv = {from, 0, (uint64_t)(uintptr_t)buffer + 64, 64};
  OK(dat_ep_post_recv(peer.ep, 1, &recv, cookie(3), 0));
  OK(dat_ep_post_send(owner.ep, 1, &send, cookie(4), 0));
  CHECK(event(owner.request, 1).event_data.dto.user_cookie.as_64 == 4);
  DAT_EVENT received = event(peer.recv, 1);
  CHECK(received.event_data.dto.transfered_length == 64 && received.event_data.dto.status == 0);
  CHECK(old != context && rdma(1, from, context, memory + 128) == 0);
  DAT_LMR_TRIPLET nothing = {0xdeadbeef, 0, ~0ull, 0};
  uint32_t undefined;
  OK(dat_rmr_bind(rmr, &nothing, R, owner.ep, cookie(5), 0, &undefined));
  CHECK(event(owner.request, 0x1001).event_data.bind.user_cookie.as_64 == 5);
  OK(dat_lmr_free(lmr));
  FAILS(INVALID_PARAMETER, dat_rmr_bind(rmr, &part, R, owner.ep, cookie(1), 0, &undefined));
  CHECK(rdma(1, from, context, memory + 128) == 6);
  event(peer.connect, 0x4006);
  event(owner.connect, 0x4006);

  /* Software events. */
  DAT_HANDLE own;
  DAT_EVENT mine = {.event_number = 0x10001};
  OK(dat_evd_create(owner.ia, 8, NULL, 0x1, &own));
  mine.event_data.software.pointer = &mine;
  OK(dat_evd_post_se(own, &mine));
  DAT_EVENT got;
  OK(dat_evd_dequeue(own, &got));
  CHECK(got.event_number == 0x10001 && got.event_data.software.pointer == &mine);
  CHECK(TYPE(dat_evd_dequeue(own, &got)) == 0xd0000);

  OK(dat_ia_close(owner.ia, 0));
  OK(dat_ia_close(peer.ia, 0));
  printf("done\n");
  return 0;
}
