/* A signal interrupts a thread that waits for an event exactly as it interrupts a read. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static void count(int number) { (void)number; signals++; }

static void signal_in(int milliseconds, int flags) {
  struct sigaction action = {.sa_handler = count, .sa_flags = flags};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval timer = {.it_value.tv_usec = milliseconds * 1000, .it_interval.tv_usec = 20000};
  setitimer(ITIMER_REAL, &timer, NULL);
}

/* Sends some signals, and then moves a queue pair to ERR, which flushes its receives. */
static void *fail_later(void *qp) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  while (signals < 3) usleep(1000);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE) ? qp : NULL;
}

int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  struct ibv_context *context = ibv_open_device(list[0]);
  struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
  struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *which;
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_async_event event;
  void *cq_context;

  ibv_req_notify_cq(cq, 0);
  signal_in(20, 0);
  if (ibv_get_cq_event(channel, &which, &cq_context) != -1 || errno != EINTR)
    return printf("a signal caused a completion event\n"), 1;
  if (ibv_get_async_event(context, &event) != -1 || errno != EINTR)
    return printf("a signal caused an asynchronous event\n"), 1;

  /* With SA_RESTART, the wait continues until there is an event. */
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                  .cap = {1, 1, 1, 1, 0}};
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) return 2;
  struct ibv_recv_wr wr = {0}, *bad;
  if (ibv_post_recv(qp, &wr, &bad)) return 3;
  pthread_t thread;
  void *failed;
  signal_in(20, SA_RESTART);
  signals = 0;
  if (pthread_create(&thread, NULL, fail_later, qp)) return 7;
  if (ibv_get_cq_event(channel, &which, &cq_context) || which != cq)
    return printf("a signal ended a wait that should continue: %s\n", strerror(errno)), 1;
  ibv_ack_cq_events(cq, 1);
  if (pthread_join(thread, &failed) || failed) return 4;
  if (signals < 3) return printf("the wait ended before the signals arrived\n"), 1;
  struct ibv_wc wc;
  if (ibv_poll_cq(cq, 1, &wc) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR) return 5;
  if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel) ||
      ibv_dealloc_pd(pd) || ibv_close_device(context)) return 6;
  ibv_free_device_list(list);
  printf("done\n");
  return 0;
}
