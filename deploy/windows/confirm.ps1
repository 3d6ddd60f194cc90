# Confirms on a real Windows node what tests could not see: the numbers are those of docs/windows.md, "Not confirmed". Run it as an
# administrator while ferroxy runs there, in Windows PowerShell 5.1 or newer.
#
#   .\confirm.ps1 [-Network cbr0] [-Service 10.96.0.10:53] [-Watch 60] [-Change] [-Interface Ethernet] [-Program C:\k\ferroxy.exe] [-Restart]
#
# It reads only, except with -Change: then it creates one load balancer and one remote endpoint at addresses for documentation
# (198.51.100.0/24), writes the load balancer of -Service once more as it is, puts an address on -Interface, and registers a
# service that cannot start. It removes all of that. With -Restart it restarts HNS.
param(
    [string]$Network = $(if ($env:KUBE_NETWORK) { $env:KUBE_NETWORK } else { "cbr0" }),
    [string]$Service = "",
    [int]$Watch = 0,
    [switch]$Change,
    [string]$Interface = "",
    [string]$Program = "",
    [switch]$Restart
)
$ErrorActionPreference = "Stop"
$script:failed = 0

function Check([int]$Number, [string]$What, [bool]$IsTrue, [string]$Detail = "") {
    if (-not $IsTrue) { $script:failed++ }
    "{0,-7} {1} {2} {3}" -f $(if ($IsTrue) { "ok" } else { "FAILED" }), $Number, $What, $Detail
}

function Skip([int]$Number, [string]$What, [string]$Needs) {
    "{0,-7} {1} {2} (needs {3})" -f "skipped", $Number, $What, $Needs
}

Add-Type -TypeDefinition @'
using System;
using System.Collections.Generic;
using System.Net;
using System.Runtime.InteropServices;
using System.Text.RegularExpressions;

// One call of the Host Compute Network API each. Code is the HRESULT, Text what came back.
public class Answer { public uint Code; public IntPtr Handle; public string Text = ""; }

public static class Hcn {
    const string D = "computenetwork.dll";
    [DllImport(D)] static extern uint HcnOpenNetwork(ref Guid id, out IntPtr handle, out IntPtr record);
    [DllImport(D)] static extern uint HcnCloseNetwork(IntPtr handle);
    [DllImport(D)] static extern uint HcnOpenEndpoint(ref Guid id, out IntPtr handle, out IntPtr record);
    [DllImport(D)] static extern uint HcnCloseEndpoint(IntPtr handle);
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint HcnCreateEndpoint(IntPtr network, ref Guid id, string settings, out IntPtr handle, out IntPtr record);
    [DllImport(D)] static extern uint HcnDeleteEndpoint(ref Guid id, out IntPtr record);
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint HcnEnumerateLoadBalancers(string query, out IntPtr ids, out IntPtr record);
    [DllImport(D)] static extern uint HcnOpenLoadBalancer(ref Guid id, out IntPtr handle, out IntPtr record);
    [DllImport(D)] static extern uint HcnCloseLoadBalancer(IntPtr handle);
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint HcnCreateLoadBalancer(ref Guid id, string settings, out IntPtr handle, out IntPtr record);
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint HcnModifyLoadBalancer(IntPtr handle, string settings, out IntPtr record);
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint HcnQueryLoadBalancerProperties(IntPtr handle, string query, out IntPtr properties, out IntPtr record);
    [DllImport(D)] static extern uint HcnDeleteLoadBalancer(ref Guid id, out IntPtr record);
    delegate void Callback(uint number, IntPtr context, uint status, IntPtr data);
    [DllImport(D)] static extern uint HcnRegisterServiceCallback(Callback callback, IntPtr context, out IntPtr handle);
    [DllImport(D)] static extern uint HcnUnregisterServiceCallback(IntPtr handle);
    [DllImport("vmcompute.dll", CharSet = CharSet.Unicode)] static extern uint HNSCall(string method, string path, string request, out IntPtr response);

    const string Query = "{\"SchemaVersion\":{\"Major\":2,\"Minor\":0}}";

    static string Take(IntPtr text) {
        if (text == IntPtr.Zero) return "";
        string taken = Marshal.PtrToStringUni(text);
        Marshal.FreeCoTaskMem(text);
        return taken;
    }

    public static Answer CreateEndpoint(Guid network, Guid id, string settings) {
        IntPtr opened, handle, record;
        uint code = HcnOpenNetwork(ref network, out opened, out record);
        if (code != 0) return new Answer { Code = code, Text = Take(record) };
        code = HcnCreateEndpoint(opened, ref id, settings, out handle, out record);
        if (code == 0) HcnCloseEndpoint(handle);
        HcnCloseNetwork(opened);
        return new Answer { Code = code, Text = Take(record) };
    }

    public static Answer DeleteEndpoint(Guid id) {
        IntPtr record;
        uint code = HcnDeleteEndpoint(ref id, out record);
        return new Answer { Code = code, Text = Take(record) };
    }

    public static Answer ListBalancers() {
        IntPtr ids, record;
        uint code = HcnEnumerateLoadBalancers(Query, out ids, out record);
        return new Answer { Code = code, Text = Take(ids) };
    }

    // With what HNS says of it afterwards.
    public static Answer CreateBalancer(Guid id, string settings) {
        IntPtr handle, record, properties;
        uint code = HcnCreateLoadBalancer(ref id, settings, out handle, out record);
        if (code != 0) return new Answer { Code = code, Text = Take(record) };
        code = HcnQueryLoadBalancerProperties(handle, Query, out properties, out record);
        HcnCloseLoadBalancer(handle);
        return new Answer { Code = code, Text = Take(properties) };
    }

    public static Answer ReadBalancer(Guid id) {
        IntPtr handle, record, properties;
        uint code = HcnOpenLoadBalancer(ref id, out handle, out record);
        if (code != 0) return new Answer { Code = code, Text = Take(record) };
        code = HcnQueryLoadBalancerProperties(handle, Query, out properties, out record);
        HcnCloseLoadBalancer(handle);
        return new Answer { Code = code, Text = Take(properties) };
    }

    public static Answer ModifyBalancer(Guid id, string settings) {
        IntPtr handle, record;
        uint code = HcnOpenLoadBalancer(ref id, out handle, out record);
        if (code != 0) return new Answer { Code = code, Text = Take(record) };
        code = HcnModifyLoadBalancer(handle, settings, out record);
        HcnCloseLoadBalancer(handle);
        return new Answer { Code = code, Text = Take(record) };
    }

    public static Answer DeleteBalancer(Guid id) {
        IntPtr record;
        uint code = HcnDeleteLoadBalancer(ref id, out record);
        return new Answer { Code = code, Text = Take(record) };
    }

    // The first version of the API.
    public static string Get(string path) {
        IntPtr response;
        uint code = HNSCall("GET", path, "", out response);
        return code == 0 ? Take(response) : "";
    }

    // For each endpoint that is attached meanwhile: the code of opening it at once.
    public static List<uint> WatchEndpoints(int seconds) {
        var codes = new List<uint>();
        Callback callback = (number, context, status, data) => {
            if (number != 9 || data == IntPtr.Zero) return;
            var found = Regex.Match(Marshal.PtrToStringUni(data), "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}");
            if (!found.Success) return;
            Guid id = new Guid(found.Value);
            IntPtr handle, record;
            uint code = HcnOpenEndpoint(ref id, out handle, out record);
            if (code == 0) HcnCloseEndpoint(handle);
            lock (codes) codes.Add(code);
        };
        IntPtr registration;
        if (HcnRegisterServiceCallback(callback, IntPtr.Zero, out registration) != 0) return null;
        System.Threading.Thread.Sleep(1000 * seconds);
        HcnUnregisterServiceCallback(registration);
        GC.KeepAlive(callback);
        lock (codes) return new List<uint>(codes);
    }
}

// What HNS announces between Begin and End.
public static class Announced {
    const string D = "computenetwork.dll";
    delegate void Callback(uint number, IntPtr context, uint status, IntPtr data);
    [DllImport(D)] static extern uint HcnRegisterServiceCallback(Callback callback, IntPtr context, out IntPtr handle);
    [DllImport(D)] static extern uint HcnUnregisterServiceCallback(IntPtr handle);
    static readonly List<uint> numbers = new List<uint>();
    // One for all registrations, which lives as long as the process: HNS may call late.
    static readonly Callback callback = (number, context, status, data) => { lock (numbers) numbers.Add(number); };
    static IntPtr registration;

    public static uint Begin() { return HcnRegisterServiceCallback(callback, IntPtr.Zero, out registration); }

    public static List<uint> End() {
        HcnUnregisterServiceCallback(registration);
        lock (numbers) return new List<uint>(numbers);
    }
}

// An address as winuserspace mode adds it: a row of MIB_UNICASTIPADDRESS_ROW (80 bytes).
public static class Addresses {
    const string D = "iphlpapi.dll";
    [DllImport(D, CharSet = CharSet.Unicode)] static extern uint ConvertInterfaceAliasToLuid(string alias, out ulong luid);
    [DllImport(D)] static extern void InitializeUnicastIpAddressEntry(IntPtr row);
    [DllImport(D)] static extern uint CreateUnicastIpAddressEntry(IntPtr row);
    [DllImport(D)] static extern uint DeleteUnicastIpAddressEntry(IntPtr row);
    [DllImport(D)] static extern uint GetUnicastIpAddressEntry(IntPtr row);

    static IntPtr Row(string alias, IPAddress address) {
        ulong luid;
        if (ConvertInterfaceAliasToLuid(alias, out luid) != 0) throw new Exception("there is no interface " + alias);
        IntPtr row = Marshal.AllocHGlobal(80);
        InitializeUnicastIpAddressEntry(row);
        Marshal.WriteInt16(row, 0, 2);                          // Address: AF_INET
        Marshal.Copy(address.GetAddressBytes(), 0, row + 4, 4);
        Marshal.WriteInt64(row, 32, (long)luid);                // InterfaceLuid
        Marshal.WriteByte(row, 60, 32);                         // OnLinkPrefixLength
        Marshal.WriteByte(row, 61, 1);                          // SkipAsSource
        Marshal.WriteInt32(row, 64, 4);                         // DadState: preferred
        return row;
    }

    public static uint Add(string alias, IPAddress address) {
        IntPtr row = Row(alias, address);
        uint code = CreateUnicastIpAddressEntry(row);
        Marshal.FreeHGlobal(row);
        return code;
    }

    // It keeps the two marks of ours: a prefix of 32 bits, and SkipAsSource.
    public static bool IsMarked(string alias, IPAddress address) {
        IntPtr row = Row(alias, address);
        Marshal.WriteByte(row, 60, 0);
        Marshal.WriteByte(row, 61, 0);
        bool marked = GetUnicastIpAddressEntry(row) == 0 && Marshal.ReadByte(row, 60) == 32 && Marshal.ReadByte(row, 61) == 1;
        Marshal.FreeHGlobal(row);
        return marked;
    }

    public static uint Remove(string alias, IPAddress address) {
        IntPtr row = Row(alias, address);
        uint code = DeleteUnicastIpAddressEntry(row);
        Marshal.FreeHGlobal(row);
        return code;
    }
}
'@

function Hex([uint32]$Code) { "0x{0:x8}" -f $Code }

$found = (([Hcn]::Get("/networks/") | ConvertFrom-Json).Output) | Where-Object { $_.Name -eq $Network } | Select-Object -First 1
if (-not $found) { throw "HNS has no network ${Network}: name another one with -Network" }
$version = ([Hcn]::Get("/globals/version") | ConvertFrom-Json).Output
"HNS $($version.Major).$($version.Minor), Windows $([Environment]::OSVersion.Version), network $Network ($($found.Type))"
$modifies = $version.Major -gt 15 -or ($version.Major -eq 15 -and $version.Minor -ge 5)

# What runs there now.
$ids = [Hcn]::ListBalancers().Text | ConvertFrom-Json
$balancers = @($ids | ForEach-Object { [Hcn]::ReadBalancer([guid]$_).Text } | Where-Object { $_ } | ForEach-Object { $_ | ConvertFrom-Json })
$ours = @($balancers | Where-Object { $_.Owner -eq "ferroxy" })
Check 1 "HNS keeps the owner of load balancers" ($ours.Count -gt 0) "($($ours.Count) of $($balancers.Count) are ours)"
$lists = @(([Hcn]::Get("/policylists/") | ConvertFrom-Json).Output)
$listed = @{}
$lists | ForEach-Object { $listed[$_.ID.ToUpper()] = $_ }
$unlisted = @($ours | Where-Object { -not $listed[$_.ID.ToUpper()] })
Check 9 "lists of the first version of the API have our load balancers" ($ours.Count -gt 0 -and $unlisted.Count -eq 0) "($($unlisted.Count) are missing)"
$wrong = @($ours | Where-Object { $_.ID -and $listed[$_.ID.ToUpper()] } | Where-Object {
        $references = @($listed[$_.ID.ToUpper()].References | ForEach-Object { ($_ -split "/")[-1].ToUpper() }) | Sort-Object
        $endpoints = @($_.HostComputeEndpoints | ForEach-Object { $_.ToUpper() }) | Sort-Object
        ($references -join ",") -ne ($endpoints -join ",")
    })
Check 9 "these lists name the endpoints of each" ($wrong.Count -eq 0) "($($wrong.Count) differ)"

$range = netsh int ipv4 show dynamicportrange tcp | Select-String ":\s*(\d+)" | Select-Object -First 1
$start = [int]$range.Matches[0].Groups[1].Value
Check 0 "dynamic ports do not overlap node ports" ($start -gt 32767) "(they start at ${start}: netsh int ipv4 set dynamicportrange tcp 49152 16384)"

$client = $null
if ($Service) {
    $address, $port = $Service -split ":(?=\d+$)"
    $client = New-Object Net.Sockets.TcpClient
    try { $client.Connect($address, [int]$port) } catch { $client = $null }
    Check 0 "the Service $Service answers" ($null -ne $client)
}

if ($Change) {
    $endpoint = [guid]"7a1e0c6e-0000-8000-8000-000000000001"
    $balancer = [guid]"7a1e0c6e-0000-8000-8000-000000000002"
    $other = [guid]"7a1e0c6e-0000-8000-8000-000000000003"
    $schema = @{ Major = 2; Minor = 0 }
    $remote = @{ Owner = "ferroxy-confirm"; HostComputeNetwork = $found.ID; MacAddress = "02-11-c6-33-64-4d"; Flags = 1; SchemaVersion = $schema
        IpConfigurations = @(@{ IpAddress = "198.51.100.77" }) } | ConvertTo-Json -Depth 6 -Compress
    $document = @{ Owner = "ferroxy-confirm"; HostComputeEndpoints = @("$endpoint"); FrontendVIPs = @("198.51.100.1"); SchemaVersion = $schema
        PortMappings = @(@{ Protocol = 6; InternalPort = 9; ExternalPort = 9; DistributionType = 0; Flags = 16 }) } | ConvertTo-Json -Depth 6 -Compress
    try {
        $made = [Hcn]::CreateEndpoint([guid]$found.ID, $endpoint, $remote)
        Check 6 "a remote endpoint with numbers is accepted" ($made.Code -eq 0) "($(Hex $made.Code) $($made.Text))"
        foreach ($round in 1, 2) {
            $made = [Hcn]::CreateBalancer($balancer, $document)
            Check 6 "round ${round}: a load balancer with numbers is accepted" ($made.Code -eq 0) "($(Hex $made.Code))"
            $seen = if ($made.Code -eq 0) { $made.Text | ConvertFrom-Json } else { $null }
            Check 1 "round ${round}: the id and the owner are kept" ($seen -and [guid]$seen.ID -eq $balancer -and $seen.Owner -eq "ferroxy-confirm") "($($seen.ID) $($seen.Owner))"
            if ($round -eq 1) {
                $gone = [Hcn]::DeleteBalancer($balancer)
                Check 2 "a deleted load balancer is gone at once" ([Hcn]::ReadBalancer($balancer).Code -ne 0) "($(Hex $gone.Code))"
            } else {
                Check 2 "its id can be used again at once" ($made.Code -eq 0) "($(Hex $made.Code))"
            }
        }
        $refused = [Hcn]::DeleteEndpoint($endpoint)
        Check 3 "an endpoint that a load balancer names is not deleted" ($refused.Code -eq 0x803B002CL) "($(Hex $refused.Code), 0x803b002c expected)"
        $taken = [Hcn]::CreateBalancer($other, $document)
        Check 3 "a taken frontend is refused" ($taken.Code -eq 0x803B0013L) "($(Hex $taken.Code), 0x803b0013 expected)"
        $before = ([Hcn]::Get("/policylists/") | ConvertFrom-Json).Output | Where-Object { [guid]$_.ID -eq $balancer }
        Check 9 "a new load balancer is listed with its port" ("$($before.Policies | ConvertTo-Json -Depth 6 -Compress)" -match '"ExternalPort":\s*9\b') "($($before | ConvertTo-Json -Depth 6 -Compress))"
        if ($modifies) {
            $changed = $document -replace '"InternalPort":9', '"InternalPort":10'
            $answer = [Hcn]::ModifyBalancer($balancer, $changed)
            $after = ([Hcn]::Get("/policylists/") | ConvertFrom-Json).Output | Where-Object { [guid]$_.ID -eq $balancer }
            $texts = $before, $after | ForEach-Object { $_.Policies | ConvertTo-Json -Depth 6 -Compress }
            Check 9 "a changed load balancer is listed otherwise" ($answer.Code -eq 0 -and $texts[0] -ne $texts[1]) "($(Hex $answer.Code))"
        } else { Skip 9 "a changed load balancer is listed otherwise" "HNS 15.5" }
    } finally {
        $balancer, $other | ForEach-Object { [void][Hcn]::DeleteBalancer($_) }
        [void][Hcn]::DeleteEndpoint($endpoint)
    }
    $target = if ($client) { $ours | Where-Object { $_.FrontendVIPs -contains $address -and $_.PortMappings[0].ExternalPort -eq [int]$port } | Select-Object -First 1 }
    if ($modifies -and $target) {
        $same = @{}
        foreach ($field in "Owner", "HostComputeEndpoints", "SourceVIP", "FrontendVIPs", "PortMappings", "Flags", "SchemaVersion") {
            if ($null -ne $target.$field) { $same[$field] = $target.$field }
        }
        $answer = [Hcn]::ModifyBalancer([guid]$target.ID, ($same | ConvertTo-Json -Depth 6 -Compress))
        Start-Sleep -Seconds 2
        $ended = $client.Client.Poll(1, [Net.Sockets.SelectMode]::SelectRead) -and $client.Available -eq 0
        Check 4 "a changed load balancer keeps its connections" ($answer.Code -eq 0 -and -not $ended) "($(Hex $answer.Code))"
    } else { Skip 4 "a changed load balancer keeps its connections" "HNS 15.5, and -Service with a TCP Service that has a load balancer of ours" }
} else {
    Skip 2 "an id can be used again at once" "-Change"
    Skip 3 "what HNS refuses" "-Change"
    Skip 4 "a changed load balancer keeps its connections" "-Change and -Service"
    Skip 6 "numbers in documents are accepted" "-Change"
}

if ($Watch -gt 0) {
    "start a pod on this node within $Watch seconds"
    $codes = [Hcn]::WatchEndpoints($Watch)
    $early = @($codes | Where-Object { $_ -ne 0 })
    Check 5 "endpoints can be opened when they are announced" ($null -ne $codes -and $codes.Count -gt 0 -and $early.Count -eq 0) "($(@($codes).Count) announced, $($early.Count) not opened)"
} else { Skip 5 "endpoints can be opened when they are announced" "-Watch 60 and a pod that starts meanwhile" }

if ($Change -and $Interface) {
    $ip = [Net.IPAddress]"198.51.100.78"
    $code = [Addresses]::Add($Interface, $ip)
    Check 7 "an address is added" ($code -eq 0) "(error $code)"
    try {
        Check 7 "it keeps its marks" ([Addresses]::IsMarked($Interface, $ip))
        $answered = $false; $from = ""
        try {
            $listener = New-Object Net.Sockets.TcpListener($ip, 0)
            $listener.Start()
            $caller = New-Object Net.Sockets.TcpClient
            $caller.Connect($ip, $listener.LocalEndpoint.Port)
            $answered = $caller.Connected
            $caller.Close(); $listener.Stop()
        } catch { $from = "$_" }
        Check 7 "a program listens there at once, and is reached" $answered "$from"
        $from = ""
        try {
            $server = New-Object Net.Sockets.UdpClient (New-Object Net.IPEndPoint($ip, 0))
            $asker = New-Object Net.Sockets.UdpClient (New-Object Net.IPEndPoint([Net.IPAddress]::Any, 0))
            $asker.Client.ReceiveTimeout = 5000; $server.Client.ReceiveTimeout = 5000
            $there = New-Object Net.IPEndPoint([Net.IPAddress]::Any, 0)
            [void]$asker.Send([byte[]](1), 1, (New-Object Net.IPEndPoint($ip, $server.Client.LocalEndPoint.Port)))
            [void]$server.Receive([ref]$there)
            [void]$server.Send([byte[]](2), 1, $there)
            [void]$asker.Receive([ref]$there)
            $from = "$($there.Address)"
            $server.Close(); $asker.Close()
        } catch { $from = "$_" }
        Check 7 "UDP answers come from it" ($from -eq "$ip") "($from)"
    } finally {
        $code = [Addresses]::Remove($Interface, $ip)
        Check 7 "it is removed" ($code -eq 0) "(error $code)"
    }
} else { Skip 7 "addresses of winuserspace mode" "-Change and -Interface" }

if ($Change -and $Program) {
    # One that must not start: it says why, and changes nothing.
    $log = Join-Path $env:TEMP "ferroxy-confirm.log"
    Remove-Item $log -ErrorAction SilentlyContinue
    $since = (Get-Date).AddSeconds(-1)
    [void](New-Service -Name "ferroxy-confirm" -BinaryPathName "`"$Program`" run --windows-service --no-such-flag --log-file=$log" -StartupType Manual)
    try {
        try { Start-Service "ferroxy-confirm" } catch { }
        for ($i = 0; $i -lt 30 -and (Get-Service "ferroxy-confirm").Status -ne "Stopped"; $i++) { Start-Sleep -Seconds 1 }
        Check 8 "a service that cannot start has ended" ((Get-Service "ferroxy-confirm").Status -eq "Stopped")
        Check 8 "it says why in its log file" ("$(Get-Content $log -Raw -ErrorAction SilentlyContinue)" -match "no-such-flag")
        $events = @(Get-WinEvent -FilterHashtable @{ LogName = "Application"; ProviderName = "kube-proxy"; StartTime = $since } -ErrorAction SilentlyContinue)
        Check 8 "it says why in the Event Log" ($events.Count -gt 0) "($($events.Count) events)"
    } finally { sc.exe delete "ferroxy-confirm" | Out-Null }
} else { Skip 8 "errors of a service reach its log file and the Event Log" "-Change and -Program" }
$running = Get-Service "kube-proxy" -ErrorAction SilentlyContinue
if ($running) { Check 8 "the service kube-proxy runs" ($running.Status -eq "Running") "($($running.Status))" } else { Skip 8 "the service kube-proxy runs" "a service of that name" }

if ($Restart) {
    $code = [Announced]::Begin()
    Restart-Service hns -Force
    Start-Sleep -Seconds 10
    $numbers = [Announced]::End()
    Check 10 "HNS announces that it stops" ($code -eq 0 -and $numbers -contains 0x01000000) "($(Hex $code), $(@($numbers).Count) announced)"
    $code = [Announced]::Begin()
    [void][Announced]::End()
    Check 10 "callbacks can be registered again after a restart" ($code -eq 0) "($(Hex $code))"
} else { Skip 10 "callbacks after HNS restarts" "-Restart" }

"$($script:failed) checks failed"
exit $script:failed
