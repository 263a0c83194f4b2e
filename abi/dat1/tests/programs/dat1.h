/* The part of DAT 1.2's <dat/udat.h> that the test needs; Debian does not ship that header. */
#include <stdint.h>

typedef uint32_t DAT_RETURN;
typedef void *DAT_HANDLE;
typedef union {
  void *as_ptr;
  uint64_t as_64;
} DAT_CONTEXT;
typedef struct {
  uint32_t lmr_context, pad;
  uint64_t virtual_address, segment_length;
} DAT_LMR_TRIPLET;
typedef struct {
  uint32_t rmr_context, pad;
  uint64_t target_address, segment_length;
} DAT_RMR_TRIPLET;
typedef union {
  void *for_va;
  DAT_HANDLE for_lmr_handle;
  struct {
    void *virtual_address;
    char (*shared_memory_id)[40];
  } for_shared_memory;
} DAT_REGION_DESCRIPTION;
typedef struct {
  DAT_HANDLE ia_handle, pz_handle;
  DAT_LMR_TRIPLET lmr_triplet;
  int mem_priv;
  uint32_t rmr_context;
} DAT_RMR_PARAM;
typedef struct {
  DAT_HANDLE ia_handle;
  int mem_type;
  DAT_REGION_DESCRIPTION region_desc;
  uint64_t length;
  DAT_HANDLE pz_handle;
  int mem_priv;
  uint32_t lmr_context, rmr_context;
  uint64_t registered_size, registered_address;
} DAT_LMR_PARAM;
typedef struct {
  const char *name, *value;
} DAT_NAMED_ATTR;
typedef struct {
  int service_type;
  uint64_t max_message_size, max_rdma_size;
  int qos, recv_completion_flags, request_completion_flags;
  int max_recv_dtos, max_request_dtos, max_recv_iov, max_request_iov, max_rdma_read_in, max_rdma_read_out;
  int srq_soft_hw, max_rdma_read_iov, max_rdma_write_iov;
  int ep_transport_specific_count;
  DAT_NAMED_ATTR *ep_transport_specific;
  int ep_provider_specific_count;
  DAT_NAMED_ATTR *ep_provider_specific;
} DAT_EP_ATTR;
typedef struct {
  DAT_HANDLE ia_handle;
  int ep_state;
  void *local_ia_address_ptr;
  uint64_t local_port_qual;
  void *remote_ia_address_ptr;
  uint64_t remote_port_qual;
  DAT_HANDLE pz_handle, recv_evd_handle, request_evd_handle, connect_evd_handle, srq_handle;
  DAT_EP_ATTR ep_attr;
} DAT_EP_PARAM;
typedef struct {
  int event_number;
  DAT_HANDLE evd_handle;
  union {
    struct {
      DAT_HANDLE ep_handle;
      DAT_CONTEXT user_cookie;
      int status;
      uint64_t transfered_length;
    } dto;
    struct {
      DAT_HANDLE rmr_handle;
      DAT_CONTEXT user_cookie;
      int status;
    } bind;
    struct {
      DAT_HANDLE sp_handle;
      void *local_ia_address_ptr;
      uint64_t conn_qual;
      DAT_HANDLE cr_handle;
    } arrival;
    struct {
      DAT_HANDLE ep_handle;
      int private_data_size;
      void *private_data;
    } connection;
    struct {
      void *pointer;
    } software;
  } event_data;
} DAT_EVENT;
typedef struct {
  char adapter_name[256], vendor_name[256];
  uint32_t versions[4];
  void *ia_address_ptr;
  int max_eps, max_dto_per_ep, max_rdma_read_per_ep_in, max_rdma_read_per_ep_out, max_evds, max_evd_qlen;
  int max_iov_segments_per_dto, max_lmrs;
  uint64_t max_lmr_block_size, max_lmr_virtual_address;
  int max_pzs;
  uint64_t max_message_size, max_rdma_size;
  int max_rmrs;
  uint64_t max_rmr_target_address;
  int others[9];
  int num_transport_attr;
  DAT_NAMED_ATTR *transport_attr;
  int num_vendor_attr;
  DAT_NAMED_ATTR *vendor_attr;
} DAT_IA_ATTR;
typedef struct {
  char ia_name[256];
  uint32_t dapl_version_major, dapl_version_minor;
  int is_thread_safe;
} DAT_PROVIDER_INFO;
_Static_assert(sizeof(DAT_EVENT) == 48 && sizeof(DAT_EP_ATTR) == 104 && sizeof(DAT_EP_PARAM) == 192, "DAT 1.2 on x86-64");

DAT_RETURN dat_ia_openv(const char *, int, DAT_HANDLE *, DAT_HANDLE *, uint32_t, uint32_t, int);
DAT_RETURN dat_ia_close(DAT_HANDLE, int);
DAT_RETURN dat_ia_query(DAT_HANDLE, DAT_HANDLE *, uint64_t, DAT_IA_ATTR *, uint64_t, void *);
DAT_RETURN dat_registry_list_providers(int, int *, DAT_PROVIDER_INFO *[]);
DAT_RETURN dat_strerror(DAT_RETURN, const char **, const char **);
DAT_RETURN dat_pz_create(DAT_HANDLE, DAT_HANDLE *);
DAT_RETURN dat_pz_free(DAT_HANDLE);
DAT_RETURN dat_evd_create(DAT_HANDLE, int, DAT_HANDLE, int, DAT_HANDLE *);
DAT_RETURN dat_evd_wait(DAT_HANDLE, uint32_t, int, DAT_EVENT *, int *);
DAT_RETURN dat_evd_dequeue(DAT_HANDLE, DAT_EVENT *);
DAT_RETURN dat_evd_post_se(DAT_HANDLE, const DAT_EVENT *);
DAT_RETURN dat_evd_free(DAT_HANDLE);
DAT_RETURN dat_ep_create(DAT_HANDLE, DAT_HANDLE, DAT_HANDLE, DAT_HANDLE, DAT_HANDLE, const DAT_EP_ATTR *, DAT_HANDLE *);
DAT_RETURN dat_ep_query(DAT_HANDLE, uint64_t, DAT_EP_PARAM *);
DAT_RETURN dat_ep_connect(DAT_HANDLE, void *, uint64_t, uint32_t, int, void *, int, int);
DAT_RETURN dat_ep_disconnect(DAT_HANDLE, int);
DAT_RETURN dat_ep_free(DAT_HANDLE);
DAT_RETURN dat_ep_post_send(DAT_HANDLE, int, DAT_LMR_TRIPLET *, DAT_CONTEXT, int);
DAT_RETURN dat_ep_post_recv(DAT_HANDLE, int, DAT_LMR_TRIPLET *, DAT_CONTEXT, int);
DAT_RETURN dat_ep_post_rdma_write(DAT_HANDLE, int, DAT_LMR_TRIPLET *, DAT_CONTEXT, const DAT_RMR_TRIPLET *, int);
DAT_RETURN dat_ep_post_rdma_read(DAT_HANDLE, int, DAT_LMR_TRIPLET *, DAT_CONTEXT, const DAT_RMR_TRIPLET *, int);
DAT_RETURN dat_psp_create_any(DAT_HANDLE, uint64_t *, DAT_HANDLE, int, DAT_HANDLE *);
DAT_RETURN dat_psp_free(DAT_HANDLE);
DAT_RETURN dat_cr_accept(DAT_HANDLE, DAT_HANDLE, int, void *);
DAT_RETURN dat_cr_reject(DAT_HANDLE);
DAT_RETURN dat_lmr_create(DAT_HANDLE, int, DAT_REGION_DESCRIPTION, uint64_t, DAT_HANDLE, int, DAT_HANDLE *, uint32_t *, uint32_t *, uint64_t *, uint64_t *);
DAT_RETURN dat_lmr_query(DAT_HANDLE, int, DAT_LMR_PARAM *);
DAT_RETURN dat_lmr_free(DAT_HANDLE);
DAT_RETURN dat_rmr_create(DAT_HANDLE, DAT_HANDLE *);
DAT_RETURN dat_rmr_query(DAT_HANDLE, int, DAT_RMR_PARAM *);
DAT_RETURN dat_rmr_bind(DAT_HANDLE, const DAT_LMR_TRIPLET *, int, DAT_HANDLE, DAT_CONTEXT, int, uint32_t *);
DAT_RETURN dat_rmr_free(DAT_HANDLE);
