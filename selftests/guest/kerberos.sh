# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# A Kerberos realm for the guests. The KDC runs in the server's guest, both guests have keytabs, and
# root is a principal. For scripts that have sourced lib.sh.

REALM=RPC.TEST
KEYTAB=/t/client.keytab

# kerberos_hosts: set host names with a domain, which host principals need, and the realm.
kerberos_hosts() {
	sed -i -e "s/^192.168.88.1 .*/192.168.88.1 client.rpc.test client/" \
		-e "s/^192.168.88.2 .*/192.168.88.2 server.rpc.test server/" /etc/hosts
	cat >/etc/krb5.conf <<-CONF
	[libdefaults]
		default_realm = $REALM
		dns_lookup_realm = false
		dns_lookup_kdc = false
		rdns = false
		dns_canonicalize_hostname = false
		udp_preference_limit = 1
	[realms]
		$REALM = {
			kdc = $SERVER
		}
	[domain_realm]
		.rpc.test = $REALM
	CONF
	# NFSv4 transfers owners as names, so both sides must use the same domain.
	printf '[General]\nDomain = rpc.test\nLocal-Realms = %s\n' $REALM >/etc/idmapd.conf
	modprobe -a rpcsec_gss_krb5 auth_rpcgss
	rpc_pipefs_mount
}

# kerberos_server: start a KDC with its principals, and the daemon from which nfsd gets contexts.
# The export accepts every flavor from now on.
kerberos_server() {
	kerberos_hosts
	mkdir -p /etc/krb5kdc /var/lib/krb5kdc
	printf '[kdcdefaults]\n\tkdc_tcp_listen = 88\n' >/etc/krb5kdc/kdc.conf
	kdb5_util create -s -r $REALM -P master >/dev/null || return
	rm -f $KEYTAB
	kadmin.local <<-COMMANDS >/tmp/kadmin.out 2>&1 || return
	addprinc -randkey nfs/server.rpc.test
	addprinc -randkey host/client.rpc.test
	addprinc -pw secret root
	ktadd nfs/server.rpc.test
	ktadd -k $KEYTAB host/client.rpc.test
	COMMANDS
	[ -s $KEYTAB ] || { cat /tmp/kadmin.out; return 1; }
	krb5kdc || return
	sed -i 's/(rw,/(sec=sys:krb5:krb5i:krb5p,rw,/' /etc/exports
	exportfs -ra && rpc.svcgssd
}

# kerberos_client: set up this guest's keytab, a ticket for root, and the daemon from which the
# client gets contexts.
kerberos_client() {
	kerberos_hosts
	cp $KEYTAB /etc/krb5.keytab
	echo secret | kinit root >/dev/null || return
	pidof rpc.gssd >/dev/null || rpc.gssd -n
}

# kerberos_end: restore both sides.
kerberos_end() {
	killall -q rpc.gssd rpc.svcgssd krb5kdc
	! [ -e /etc/exports ] || ! grep -q krb5 /etc/exports || {
		sed -i 's/sec=sys:krb5:krb5i:krb5p,//' /etc/exports
		exportfs -ra
	}
}
